"""Devices, precisions and cores, for machines that are not here."""

import math
import os
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn

from offramp import machine
from offramp.errors import ConfigError

CPU = torch.device("cpu")


@pytest.fixture
def gpus(monkeypatch):
    """Say which GPUs there are; nothing can be computed on them."""

    def there_are(cuda=0, mps=False, bfloat16=True, capability=(8, 0)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Test")
        monkeypatch.setattr(
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation=True: bfloat16 or including_emulation,
        )
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return there_are


def test_auto_takes_cuda_then_mps_then_the_cpu(gpus):
    gpus(cuda=2, mps=True)
    assert machine.devices() == ["cuda:0", "cuda:1", "mps", "cpu"]
    assert machine.find_device() == torch.device("cuda:0")
    assert machine.describe_device(machine.find_device()) == "cuda:0 (NVIDIA Test)"
    gpus(mps=True)
    assert machine.devices() == ["mps", "cpu"]
    gpus()
    assert machine.find_device() == CPU


def test_a_named_device_is_checked(gpus):
    gpus(cuda=2)
    assert machine.find_device("cuda:1") == torch.device("cuda:1")
    assert machine.find_device("cuda") == torch.device("cuda:0"), "as tensors say it"
    assert machine.find_device(CPU) == CPU
    for name in ("cuda:2", "gpu", "meta", ""):
        with pytest.raises(ConfigError, match=f"one of cuda:0, cuda:1, cpu .*, got '{name}'"):
            machine.find_device(name)
    gpus()
    with pytest.raises(ConfigError, match="auto or one of cpu on this machine, got 'cuda'"):
        machine.find_device("cuda")


def test_auto_leaves_a_network_on_its_gpu(gpus):
    gpus(cuda=2)
    here, there = nn.Linear(2, 2), nn.Linear(2, 2, device="meta")  # a device that is not the CPU
    assert machine.device_for(here, None) == CPU
    assert machine.device_for(here, "auto") == torch.device("cuda:0")
    assert machine.device_for(there, "auto") == torch.device("meta")
    assert machine.device_for(there, "cuda:1") == torch.device("cuda:1")
    assert machine.device_for(nn.Identity(), None) == CPU, "without any tensor"


@pytest.mark.parametrize(
    ("features", "fast"),
    [
        ({}, False),
        ({"avx2": True, "avx512_f": True}, False),
        ({"avx512_bf16": True}, True),
        ({"amx_bf16": True}, True),
        ({"bf16": True}, True),
    ],
)
def test_auto_takes_bfloat16_only_where_the_processor_has_it(monkeypatch, features, fast):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)
    assert machine.to_precision("auto", CPU) == ("bfloat16" if fast else "float32")
    assert machine.to_precision("bfloat16", CPU) == "bfloat16", "what is asked for is taken"


@pytest.mark.parametrize(
    ("bfloat16", "capability", "expected"),
    [
        (True, (8, 0), "bfloat16"),
        (False, (7, 5), "float16"),  # emulates bfloat16
        (False, (6, 1), "float32"),  # is slower in float16 than in float32
    ],
)
def test_auto_takes_the_precision_that_a_gpu_has_instructions_for(
    gpus, monkeypatch, bfloat16, capability, expected
):
    gpus(cuda=1, bfloat16=bfloat16, capability=capability)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())  # any context
    assert machine.to_precision("auto", torch.device("cuda:0")) == expected


def test_auto_takes_float16_on_apples_gpu():
    assert machine.to_precision("auto", torch.device("mps")) == "float16"


def test_older_versions_of_torch_are_asked_in_their_own_way(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    for name in ("avx2", "avx512", "avx512_bf16", "amx_tile"):
        has_it = name == "avx512_bf16"
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda has_it=has_it: has_it)
    assert machine.cpu_features()["avx512_bf16"]
    assert machine.fast_precision(CPU) == "bfloat16"


def test_an_unknown_precision_is_refused():
    with pytest.raises(
        ConfigError, match="`precision` must be one of auto, float32, bfloat16, float16, got 'h"
    ):
        machine.to_precision("half", CPU)


@pytest.mark.parametrize(
    ("files", "granted"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({}, math.inf),
    ],
)
def test_the_quota_of_a_container_is_read(tmp_path, files, granted):
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert machine._quota(tmp_path) == granted


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_threads_of_one_core_count_once_and_a_quota_limits_them(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(machine, "_siblings", lambda cpu: f"{cpu % 2},{cpu % 2 + 2}")
    monkeypatch.setattr(machine, "_quota", lambda: math.inf)
    assert machine.physical_cores() == 2
    monkeypatch.setattr(machine, "_quota", lambda: 0.5)
    assert machine.physical_cores() == 1


KEEPING = """
import resource
import numpy as np
from offramp.machine import keep_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        np.empty(16 * 2**20, np.float32).fill(0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
without = faults()
print(keep_memory(), without, faults(), faults(), faults(), faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of the GNU C library")
def test_kept_memory_need_not_be_fetched_again():
    command = [sys.executable, "-c", KEEPING]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kept, without, *_, then = shown.split()  # by then the heap has grown
    assert kept == "True" and int(then) < int(without) / 10
