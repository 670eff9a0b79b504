"""Refitting models on the log of outcomes, and deciding whether a refitted model may go into service."""
