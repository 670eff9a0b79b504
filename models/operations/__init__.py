"""Queries and actions for operators: samples of every ten seconds, queue, fleet, predictions, jobs, sign-ins, audit."""
