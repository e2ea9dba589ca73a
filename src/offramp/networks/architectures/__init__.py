"""The architectures that `offramp.build` makes by name.

To add one: a module here, best with a `BlockNetwork` of `blocks`; its name in
`offramp.registry.ARCHITECTURES`; a small form of it among those of `tests/networks/conftest.py`,
which holds it to the promises of every network; and a row in `docs/reference/networks.md`.
"""
