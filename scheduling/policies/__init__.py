"""The policies: one file for each published system, and `fusion/`; each implements `scheduling.policy.Policy`."""
