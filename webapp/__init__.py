"""Flask: the REST API and the dashboard. Parses, stores, answers; never imports torch, never publishes."""
