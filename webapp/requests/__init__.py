"""Shared by all calls that submit: from the options of a body to stored requests and their answers."""
