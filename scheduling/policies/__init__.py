"""One file per published system; each keeps the waiting room and answers the questions of `scheduling.policy`."""
