"""The ideas that `scheduling.policies.fusion` puts together, one file each; arrays in, arrays out."""
