"""Networks, policies and exports that the tests of every runtime share."""

from ..deployment import (  # noqa: F401 - fixtures
    exported,
    make,
    make_once,
    world,
)
