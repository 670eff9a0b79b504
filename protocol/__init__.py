"""OpenAI's language without Flask and without SQL: bodies to requests, rows to answers, stream events."""
