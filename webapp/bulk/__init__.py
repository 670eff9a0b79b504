"""/v1/files and /v1/batches: uploads, bulk jobs and their results, in the shapes of OpenAI's API."""
