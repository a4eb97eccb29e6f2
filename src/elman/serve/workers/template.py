"""The program of templates and workers: `python -m elman.serve.workers.template HUB KEY [WORKER]`.

A template opens the models and forks a worker for each line that the front sends, a number. A fork
has only the thread that forked, and locks that others held stay locked; so a template has one
thread. Where that cannot be, on a GPU or with a model that starts threads, a worker is this program
again: it opens the models itself.

Options come on stdin, where `ps` does not show them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from fastapi import FastAPI

from elman.base.errors import ElmanError, UsageError
from elman.serve.http.app import Server, application, notes_of
from elman.serve.http.open_requests import Waker
from elman.serve.http.served import Served, open_models
from elman.serve.serving import Serving
from elman.serve.workers.fleet import Order, worker_path

Models = tuple[dict[str, Served], Waker]


def main(hub: str, key: str, worker: str = "") -> None:
    order = Order.from_json(sys.stdin.buffer.read())
    if worker:
        _work(hub, int(worker), order, None)
    # A front that has ended has closed its socket.
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(hub)
        models = None
        try:
            if not _on_gpu(order.serving.device):
                torch.set_num_threads(1)
                models = _open(order.serving)
        except ElmanError as error:
            _send(connection, template=int(key), failed=_told(error))
            return
        _send(connection, template=int(key))
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
        gc.collect()
        gc.freeze()  # a collection would write to shared pages
        for line in connection.makefile("rb"):
            can_fork = models is not None and _num_threads() == 1
            if os.fork() == 0:
                connection.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                if can_fork:
                    _work(hub, int(line), order, models)
                _execute(hub, key, int(line), order)
    _remove_if_dead(hub)
    os._exit(0)  # without the tidying of torch, which takes a while


def _remove_if_dead(hub: str) -> None:
    """Remove the sockets of a front that was killed."""
    with socket.socket(socket.AF_UNIX) as connection, suppress(FileNotFoundError):
        try:
            connection.connect(hub)
        except ConnectionRefusedError:
            shutil.rmtree(Path(hub).parent, ignore_errors=True)


def _open(serving: Serving) -> Models:
    waker = Waker()
    return open_models(serving, notify=waker, mapped=True), waker


def _work(hub: str, number: int, order: Order, models: Models | None) -> NoReturn:
    """Serve in this process, until the front says so or ends."""
    try:
        os.environ.clear()
        os.environ.update(order.environment)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(hub)
        _send(connection, worker=number, pid=os.getpid())
        # All forks have the same generators.
        random.seed()
        np.random.seed()
        torch.seed()
        torch.set_num_threads(order.serving.num_threads)
        try:
            served, waker = models or _open(order.serving)
        except ElmanError as error:
            _send(connection, failed=_told(error))
            os._exit(error.exit_code)
        app = application(order.serving, served, waker)
        _Worker(app, connection, path=worker_path(hub, number)).run()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _execute(hub: str, key: str, number: int, order: Order) -> NoReturn:
    """Become a fresh program that opens the models itself."""
    options = os.memfd_create("options")
    os.write(options, order.to_json())
    os.lseek(options, 0, os.SEEK_SET)
    os.dup2(options, 0)
    path = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    command = order.command(hub, int(key), number)
    os.execve(sys.executable, command, order.environment | path)


class _Worker(Server):
    """Ends when its connection to the front does."""

    def __init__(self, app: FastAPI, connection: socket.socket, **options: Any) -> None:
        super().__init__(app, on_start=self._announce, **options)
        self._connection = connection
        self._served: dict[str, Served] = app.state.context.served

    def _announce(self, _: str) -> None:
        self._connection.setblocking(False)
        asyncio.get_running_loop().add_reader(self._connection, self._hear)
        _send(self._connection, models=list(self._served), notes=notes_of(self._served))

    def _hear(self) -> None:
        asyncio.get_running_loop().remove_reader(self._connection)
        self.should_exit = True


def _send(connection: socket.socket, **message: Any) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _told(error: ElmanError) -> list[str | bool]:
    return [error.message, error.hint, isinstance(error, UsageError)]


def _on_gpu(device: str) -> bool:
    """Whether models would be on a GPU; a process that has asked it cannot be forked."""
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def _num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


if __name__ == "__main__":
    main(*sys.argv[1:])
