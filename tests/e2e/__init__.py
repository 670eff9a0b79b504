"""Tests of a whole service; a package, so that pytest stops the service after its last test and not at its own end."""
