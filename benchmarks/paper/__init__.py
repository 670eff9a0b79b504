"""Simulations of every published policy, compared with the figures that its paper prints."""
