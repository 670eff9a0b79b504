"""Forecasts of answers: simulates the present policy on the present queue, and learns how far such forecasts err."""
