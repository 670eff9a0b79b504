"""Where events are to be sent, and which have not arrived yet."""
