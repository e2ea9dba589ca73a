"""Which precisions this machine computes fast in."""

from collections.abc import Mapping
from typing import Any, Literal, cast

import torch

from offramp.errors import ConfigError

Precision = Literal["float32", "bfloat16"]
PRECISIONS = ("auto", "float32", "bfloat16")

# Instructions that multiply in bfloat16: Intel and AMD, Intel's tiles, ARM.
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")
SHOWN = ("avx2", "avx512_f", "sve", *BFLOAT16)


def cpu_features() -> dict[str, bool]:
    """The processor's instructions that matter for speed, and whether it has them."""
    known = _capabilities()
    return {name: bool(known.get(name, False)) for name in SHOWN}


def _capabilities() -> Mapping[str, Any]:
    if hasattr(torch.cpu, "get_capabilities"):
        return torch.cpu.get_capabilities()
    return {  # all that older versions of torch know
        "avx2": torch.cpu._is_avx2_supported(),
        "avx512_f": torch.cpu._is_avx512_supported(),
        "avx512_bf16": torch.cpu._is_avx512_bf16_supported(),
        "amx_bf16": torch.cpu._is_amx_tile_supported(),
    }


def has_fast_bfloat16() -> bool:
    """Whether the GPU, or without one the processor, has instructions for bfloat16.

    Otherwise bfloat16 is emulated, which is ten times slower than float32 on a processor.
    """
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    features = cpu_features()
    return any(features[name] for name in BFLOAT16)


def to_precision(name: str) -> Precision:
    """A precision by name; `auto` is bfloat16 where the machine is fast at it, else float32."""
    if name not in PRECISIONS:
        raise ConfigError(f"--precision must be auto, float32 or bfloat16, got {name!r}")
    if name == "auto":
        name = "bfloat16" if has_fast_bfloat16() else "float32"
    return cast(Precision, name)
