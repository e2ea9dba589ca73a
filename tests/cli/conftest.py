"""Networks, ledgers and studies that the commands are tried on."""

from ..deployment import exported, make, make_once, world  # noqa: F401 - fixtures
from ..studies.conftest import shipped, tiny, tiny_text  # noqa: F401 - fixtures
