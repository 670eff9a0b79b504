"""What a client may ask of an answer beside what OpenAI has, and how a request keeps it."""
