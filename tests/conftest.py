"""Shared by every test: shape checking, one thread per process, and the way to real data."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

try:
    import beartype  # noqa: F401
    import jaxtyping
except ImportError:
    pass  # a GPU machine may have neither; the tests that count shapes run elsewhere as well
else:
    # Shape annotations in these packages are checked on every call that a test makes. Triton's
    # interpreter cannot run functions that are wrapped for this.
    if os.environ.get("TRITON_INTERPRET") != "1":
        jaxtyping.install_import_hook(["elman.nn", "elman.models"], "beartype.beartype")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True, scope="session")
def _one_thread_per_process() -> None:
    import torch

    # Tests run in parallel processes; more threads than cores would only wait for each other.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    # A shell starts what runs in the background deaf to Ctrl-C, and child processes inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["ELMAN_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real corpora, beside the checkout; tests that need it skip without it."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real corpora (../shared/data) are not on this machine")
    return SHARED_DATA
