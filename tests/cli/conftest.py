"""Networks and ledgers that the commands are tried on."""

from ..deployment import exported, make, make_once, world  # noqa: F401 - fixtures
