"""Forecasts when answers come: simulates the policy in force on the present queue, and learns the forecasts' errors."""
