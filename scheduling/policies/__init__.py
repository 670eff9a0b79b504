"""One file for each published system; each keeps the waiting requests and implements `scheduling.policy.Policy`."""
