"""Tests that break a whole service; a package, so that pytest stops the service after its last test."""
