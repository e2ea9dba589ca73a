"""The architectures that `offramp.build` makes by name: one module each."""
