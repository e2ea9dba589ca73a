"""timm and torchvision, in an environment of their own.

Having torchvision installed beside the CPU build of torch breaks other libraries, so it is never
installed where the other tests run. To run these:

    python3 -m venv .venv-timm
    .venv-timm/bin/pip install -c constraints.txt -e . timm torchvision
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("OFFRAMP_TIMM_PYTHON", ROOT / ".venv-timm" / "bin" / "python"))
SCRIPT = Path(__file__).parent / "elsewhere" / "check_other_libraries.py"

MODELS = {
    "torchvision/resnet18": [64, 256],
    "torchvision/mobilenet_v3_small": None,
    "torchvision/densenet121": None,
    "torchvision/swin_t": [192, 384],
    "timm/resnet18": [64, 256],
    "timm/vit_tiny_patch16_224": [192, 192],
    "timm/efficientnet_lite0": None,
    "timm/convnext_atto": None,
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no environment with timm at {PYTHON}"),
]


@pytest.fixture(scope="module")
def results():
    run = subprocess.run(
        [PYTHON, SCRIPT, *MODELS],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return {result["model"]: result for result in map(json.loads, run.stdout.splitlines())}


@pytest.mark.parametrize("model", MODELS)
def test_model_keeps_every_promise(results, model):
    result = results[model]
    assert result["same_as_backbone"]
    assert result["loaded_is_exact"]
    assert result["shrunk_differs_by"] < 1e-5
    assert len(result["exits"]) == 3
    assert all(macs > 0 for macs in result["macs"])


@pytest.mark.parametrize("model", [name for name, widths in MODELS.items() if widths])
def test_heads_read_channels_wherever_they_are(results, model):
    assert results[model]["widths"][:2] == MODELS[model]
