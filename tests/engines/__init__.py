"""One suite over all engines; a package, so that pytest stops the engines after its last test."""
