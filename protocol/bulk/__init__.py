"""/v1/files and /v1/batches: bodies, objects, lines of files."""
