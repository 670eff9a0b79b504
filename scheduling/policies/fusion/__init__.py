"""Our own policy, `fusion_policy.py`, and its parts."""
