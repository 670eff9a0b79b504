"""HTTP below the calls: gunicorn's worker, compressed bodies, pages of other origins."""
