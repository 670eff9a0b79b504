"""Features of texts: sentence vectors, hashed words, lexical statistics and the intent of a request."""
