from __future__ import annotations

import socket
from typing import Any

import pytest

from elman.cli.serve import _from_elsewhere


class Probe:
    """A socket of a machine with one address in its network."""

    def __init__(self, *_: object, reachable: bool = True) -> None:
        self.reachable = reachable

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None: ...

    def connect(self, _: object) -> None:
        if not self.reachable:
            raise OSError("network is unreachable")

    def getsockname(self) -> tuple[str, int]:
        return "10.0.0.7", 4711


def test_the_address_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", Probe)
    assert _from_elsewhere("http://127.0.0.1:8000") == []
    assert _from_elsewhere("http://0.0.0.0:8000") == ["on other machines: http://10.0.0.7:8000"]

    def unreachable(*_: Any) -> Probe:
        return Probe(reachable=False)

    monkeypatch.setattr(socket, "socket", unreachable)
    assert _from_elsewhere("http://0.0.0.0:8000") == []
