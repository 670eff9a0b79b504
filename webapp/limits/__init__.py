"""A tenant's limits on requests and on its queue, and the limits of prompts."""
