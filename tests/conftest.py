"""Shared by every test: shape checking, one thread per process, a cache folder, real data."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

try:
    import beartype  # noqa: F401

    import shape_checks
except ImportError:
    pass  # a GPU machine may have neither; shapes are checked elsewhere
else:
    # Shape annotations in these packages are checked on the calls that tests make. Triton's
    # interpreter cannot run functions that are wrapped for this.
    if os.environ.get("TRITON_INTERPRET") != "1":
        shape_checks.install("elman.nn", "elman.models")

# A busy machine is not a failure.
settings.register_profile("elman", deadline=None)
settings.load_profile("elman")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_configure(config: pytest.Config) -> None:
    """Give all processes of a test run one cache folder and one thread each; keep compiled code.

    This runs before any test module imports numba, which reads its folder once. Worker processes
    and the commands that tests start inherit the variables. Machine code is found by the hash of
    its sources, so it may stay. Without files of byte code, each of the many processes would
    compile all modules again.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cache = tempfile.mkdtemp(prefix="elman-tests-")
    config.add_cleanup(lambda: shutil.rmtree(cache, ignore_errors=True))
    os.environ["ELMAN_CACHE"] = cache
    if cache_of_pytest := getattr(config, "cache", None):  # none with -p no:cacheprovider
        os.environ["NUMBA_CACHE_DIR"] = str(cache_of_pytest.mkdir("numba"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread_per_process() -> None:
    import torch

    # Tests run in parallel processes; more threads than cores would only wait for each other.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    # A shell starts background jobs with SIGINT ignored, and child processes inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """What these processes write need not outlive a power cut: `elman bench faults` is about it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _commands_are_made_once() -> Iterator[None]:
    """Making all commands takes longer than many a command; those of plugins are made each time."""
    from elman.cli import main

    make = main.program
    made = cache(make)

    def program(outside: Iterable[str] = (), words: Sequence[str] = ()) -> Any:
        names = list(outside)
        return make(names) if names else made()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "program", program)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real corpora, beside the checkout; tests that need it skip without it."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real corpora (../shared/data) are not on this machine")
    return SHARED_DATA
