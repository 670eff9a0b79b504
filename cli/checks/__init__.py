"""The checks of `magnus doctor` and of a service's start; each names what is missing, and the remedy."""
