"""Sets up other engines and their servers, and measures them with and without Magnus in front."""
