"""Seconds: profiles of networks, and policies on the clock."""

from typing import TYPE_CHECKING

from offramp.imports import import_when_asked

if TYPE_CHECKING:
    from offramp.timing.bench import BenchRow, bench
    from offramp.timing.config import BenchConfig
    from offramp.timing.profile import Profile, profile

__all__ = ["BenchConfig", "BenchRow", "Profile", "bench", "profile"]

import_when_asked(__name__)
