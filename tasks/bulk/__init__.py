"""The background work of bulk jobs: their lines become requests, their ends are counted."""
