"""`elman serve` in a process of its own, with its log in a file."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from elman.bench.faults.forking import ONE_THREAD, SAME_PATH
from elman.bench.faults.outcomes import Result
from elman.bench.soak import megabytes

STARTING = 300.0
"""Seconds that a server may take to start."""
FAILURES = (OSError, http.client.HTTPException, ValueError, RuntimeError)
"""What asking a server may end with, if it does not answer as it should."""


class LiveServer:
    """A server that can be killed and started again; a context manager."""

    def __init__(self, models: Sequence[str], log: Path, options: Sequence[str] = ()) -> None:
        self._command = [sys.executable, "-m", "elman", "serve", *models, "--port", "0", *options]
        self._environment = {
            **os.environ,
            **ONE_THREAD,
            "PYTHONPATH": SAME_PATH,
        }
        self.log = log
        self.address = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LiveServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start a process, and wait until it says its address."""
        begun = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stderr=log,
                stdout=log,
                env=self._environment,
            )
        ends = time.monotonic() + STARTING
        while time.monotonic() < ends and self._process.poll() is None:
            for line in self.log.read_bytes()[begun:].decode(errors="replace").splitlines():
                if line.startswith("serving ") and " at http" in line:
                    self.address = line.split()[-1]
                    return
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"the server did not start: {self.log.read_text(errors='replace')}")

    def kill(self) -> None:
        """End the process at once, as the system does when memory is short."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Interrupt the process and wait for it; return its exit status."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def failure(self, error: Exception) -> Result:
        """What it means that asking ended with this one of `FAILURES`."""
        if isinstance(error, TimeoutError):
            return "hang" if self.is_running else "crash"
        no_answer = isinstance(error, (OSError, http.client.HTTPException))
        return "crash" if no_answer or not self.is_running else "difference"

    @property
    def megabytes(self) -> float:
        """Resident memory."""
        assert self._process is not None
        return megabytes(self._process.pid)

    def ask(self, path: str, body: Any, seconds: float = 60.0) -> tuple[int, Any]:
        """Send one request; return the status and the answer."""
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=seconds)
        try:
            kind = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body).encode(), kind)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()
