"""What operators look at and do: samples of every ten seconds, the queue, fleet, predictions, jobs, sign-ins, audit."""
