"""The HTTP layer below the calls: compressed bodies, strict JSON, other origins, the gunicorn worker."""
