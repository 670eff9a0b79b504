"""The service's promises, each measured by breaking the real thing from outside: `python -m benchmarks.chaos`."""
