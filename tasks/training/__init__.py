"""The trainer's process: both learned models, fitted again on its own clock."""
