"""Measures the CPU time that a policy's decisions, the API's requests and the planner's steps take."""
