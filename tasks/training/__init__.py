"""The trainer's process: refits both learned models at its own intervals."""
