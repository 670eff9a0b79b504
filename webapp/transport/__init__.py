"""What is done to requests and answers of HTTP whatever they ask: compressed bodies, other origins."""
