"""Measures what a bulk job costs the interactive requests beside it, and the share of spare capacity that it uses."""
