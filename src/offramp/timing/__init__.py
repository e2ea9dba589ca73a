"""Seconds: profiles of networks, and policies on the clock."""

from typing import TYPE_CHECKING

from offramp.imports import import_when_asked

if TYPE_CHECKING:
    from offramp.timing.bench import bench
    from offramp.timing.config import BenchConfig
    from offramp.timing.profile import profile
    from offramp.timing.results import BenchRow, Profile

__all__ = ["BenchConfig", "BenchRow", "Profile", "bench", "profile"]

import_when_asked(__name__)
