"""Files of requests and the bulk jobs that serve them line by line, behind /v1/files and /v1/batches."""
