"""Our policy, `scheduling.policies.fusion.fusion_policy`, and its parts."""
