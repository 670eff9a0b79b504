"""Published schedulers as small policies, none in the product, simulated beside `fusion`."""
