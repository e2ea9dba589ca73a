"""The architectures that `offramp.build` makes by name."""
