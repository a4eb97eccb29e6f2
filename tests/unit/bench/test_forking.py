"""Servers that run commands in forks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("forks", allow_module_level=True)

from elman.bench.faults.forking import Forks


def test_a_server_that_has_ended_is_an_error_every_time(tmp_path: Path) -> None:
    """The second job waited for ever."""
    with Forks(1) as forks:
        (server,) = forks._all
        server.kill()
        server.wait()
        with pytest.raises(RuntimeError, match="a fork server ended with status -9"):
            forks.warm_up(["models"], tmp_path)
        with pytest.raises(RuntimeError, match="a fork server ended with status -9"):
            forks.run(["models"], tmp_path)
