"""What every process of the service shares: log lines, loops, listeners, signs of life."""
