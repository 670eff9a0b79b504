"""The ideas that `scheduling.policies.fusion.policy` puts together, one file each; arrays in, arrays out."""
