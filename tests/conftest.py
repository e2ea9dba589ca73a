import logging
import os
import secrets
import shutil
from pathlib import Path

import hypothesis
import pytest
import torch

from offramp import synthetic
from offramp.ledger import load_ledgers

from .deployment import exported, make, make_once, world  # noqa: F401 - fixtures

# Two threads per worker fight for the cores, which makes small problems far slower.
torch.set_num_threads(1)

# Fits take a second or so where the machine is busy; a test's time is not what is tested.
hypothesis.settings.register_profile("offramp", deadline=None, max_examples=40)
hypothesis.settings.load_profile("offramp")


def pytest_configure(config):
    """Hide GPUs, also from processes that tests start, unless tests on a GPU are asked for."""
    if "gpu" not in config.option.markexpr.replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        torch.backends.mps.is_available = lambda: False


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _logging_as_before():
    """Servers say how their whole process logs, and uvicorn does, even in a process of tests."""
    names = ("offramp", "offramp.access", "uvicorn", "uvicorn.error", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]
    before = [(each.handlers[:], each.level, each.propagate) for each in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture(scope="session")
def splits():
    """Small made-up ledgers with structure."""
    return synthetic.ledgers(seed=0, samples=600, exits=5, classes=10)


@pytest.fixture(scope="session")
def real_splits():
    """The real nine-exit CIFAR-100 network's ledgers, where they are at hand."""
    root = os.environ.get("OFFRAMP_DATA")
    folder = Path(root or "") / "ledgers" / "cifar100-thin"
    if not root or not folder.is_dir():
        pytest.skip("OFFRAMP_DATA has no ledgers/cifar100-thin")
    return load_ledgers(folder, network="cifar100-thin")


@pytest.fixture(scope="module")  # Playwright runs an event loop, in which no other may start
def chromium():
    """Headless Chromium; where there is none the test is skipped, and fails in CI."""
    wanted = (os.environ.get("CHROMIUM"), "/usr/bin/chromium", "google-chrome")
    found = next((path for name in wanted if name and (path := shutil.which(name))), None)
    if found is None:
        reason = "no Chromium: install it, or name one in the environment variable CHROMIUM"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    quiet = "no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    flags = [f"--{flag}" for flag in f"{quiet} disable-component-update disable-sync".split()]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=found, args=["--headless", *flags])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def cluster():
    """A local cluster of Ray with two workers, for all tests; it ends with all its processes."""
    ray = pytest.importorskip("ray")
    import psutil

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # or one is kept in ~/.ray
    # Ray's workers are polite, and would wait for those of pytest.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_metrics_report_interval_ms", "500")  # instead of ten seconds
    before = set(psutil.Process().children(recursive=True))
    ray.init(
        num_cpus=2,
        object_store_memory=200 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
    )
    yield ray
    processes = set(psutil.Process().children(recursive=True)) - before
    assert processes
    ray.shutdown()
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive
