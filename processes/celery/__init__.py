"""All that Celery needs: the app, its transport, beat, Flower, messages. Overrides of private parts."""
