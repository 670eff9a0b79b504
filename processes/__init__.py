"""The parts that all processes of the service share: log lines, loops, listeners, signs of life."""
