"""/v1/embeddings, /v1/rerank and /v1/score: calls that wait for vectors of texts or scores of pairs."""
