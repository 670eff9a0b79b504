"""Other engines: their environments and servers, measured with and without Magnus in front."""
