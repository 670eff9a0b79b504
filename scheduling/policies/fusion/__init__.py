"""The ideas that `scheduling.policies.fusion.policy` puts together, one file each."""
