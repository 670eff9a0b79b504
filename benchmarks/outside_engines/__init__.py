"""Other people's engines: their environments, their servers, and Magnus in front of them and without it."""
