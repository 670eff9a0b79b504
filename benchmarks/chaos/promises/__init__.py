"""The promises, by what they break; each function returns its rows."""
