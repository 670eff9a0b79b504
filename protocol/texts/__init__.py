"""/v1/embeddings, /v1/rerank and /v1/score: bodies and objects."""
