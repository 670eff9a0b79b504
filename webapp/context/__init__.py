"""Gives every call the app's shared objects and the API key that the call came with."""
