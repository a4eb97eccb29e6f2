"""`elman serve`: models over HTTP, and the studio."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from elman.base.errors import UsageError
from elman.runs.packaged import packaged
from elman.serve.limits import Limits
from elman.serve.serving import Serving
from elman.terminal.adapting import ways_to_adapt
from elman.terminal.console import talk, talk_notes
from elman.terminal.options import (
    AdaptSettings,
    Device,
    Quantise,
    argument,
    option,
    threads_here,
    with_options,
)

KEY_VARIABLE = "ELMAN_API_KEY"
MAX_KEY_BYTES = 4096


@with_options(Limits, *(f.name for f in fields(Limits) if f.metadata))
def serve(
    models: Annotated[
        list[str] | None,
        argument("[MODEL...]", "Runs, folders of runs, ARPA files, mixtures; NAME=MODEL names it."),
    ] = None,
    host: Annotated[str, option("HOST", "Address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, option("N", "Port; 0: any free one.", min=0, max=65535)] = 8000,
    allow_host: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Answer requests to this host name, or *.NAME below it; may be repeated.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        option(
            "FILE", "A file with the bearer token that clients must send; or set ELMAN_API_KEY."
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        option("KEY", "The token itself, which other users of this machine can see in `ps`."),
    ] = None,
    runs: Annotated[
        Path | None, option("DIR", "A folder of runs whose curves the studio shows.")
    ] = None,
    lab: Annotated[
        bool,
        option(None, "Let the studio run the experiments of `elman lab` on this machine.", "--lab"),
    ] = False,
    cors: Annotated[
        list[str] | None, option("ORIGIN", "Let pages of this origin use the API; may be repeated.")
    ] = None,
    adapt: Annotated[
        bool, option(None, "Let requests ask models to learn while they read.", "--adapt")
    ] = False,
    cache: Annotated[
        bool, option(None, "Let requests mix in words after similar contexts.", "--cache")
    ] = False,
    settings: AdaptSettings = None,
    *,
    options: dict[str, Any],
    workers: Annotated[
        int | None, option("N", "Serve from N processes, which share the weights.", min=1)
    ] = None,
    threads: Annotated[
        int,
        option("N", "Threads per computation; 0: half the cores.", min=0, callback=threads_here),
    ] = 0,
    quantise: Quantise = None,
    device: Device = "auto",
) -> None:
    """Serve models over HTTP, with a studio in the browser.

    The API is compatible with OpenAI's (/v1/completions, /v1/embeddings, /v1/models). The printed
    address is the studio's; /docs lists every route. Ctrl-C waits a few seconds for open requests.
    """
    if not models and not lab:
        models = list(packaged())
        talk_notes([f"no MODEL given: serving those that come with Elman ({', '.join(models)})"])
    if runs is not None and not runs.is_dir():
        talk_notes([f"there is no folder {runs} yet: the studio has no curves to show"])
    ways = ways_to_adapt(adapt=adapt, cache=cache, settings=settings)
    key = _api_key(api_key_file, api_key)
    serving = Serving(
        models=models or (),
        host=host,
        port=port,
        limits=Limits(**options),
        api_key=key,
        allow_hosts=allow_host or (),
        cors=cors or (),
        runs=runs,
        lab=lab,
        threads=threads,
        device=device,
        quantise=quantise,
        ways=ways,
    )
    if workers is not None:
        from elman.serve.workers.front import serve_from_workers

        serve_from_workers(serving, workers, on_start=_announce)
    else:
        from elman.serve.http.app import serve_models

        serve_models(serving, on_start=_announce)


def _api_key(file: Path | None, given: str | None) -> str | None:
    """The key from a file, the command line or the environment; None if there is none."""
    if file is not None and given is not None:
        raise UsageError("--api-key-file and --api-key both give a key", "drop one of them")
    key: str | None
    if file is not None:
        key, where = _read_key(file), str(file)
    elif given is not None:
        key, where = given, "--api-key"
        talk_notes(["--api-key shows in `ps`: use --api-key-file or ELMAN_API_KEY instead"])
    else:
        key, where = os.environ.get(KEY_VARIABLE), KEY_VARIABLE
    if key is None:
        return None
    if not key:
        raise UsageError(f"the API key of {where} is empty", "write a key, or drop the setting")
    # Clients disagree about how headers encode any other character.
    if not re.fullmatch(r"[!-~]+", key):
        raise UsageError(
            f"the API key of {where} has characters that HTTP headers cannot carry",
            "use letters, digits and signs of ASCII, without spaces",
        )
    return key


def _read_key(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            data = opened.read(MAX_KEY_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read the API key of {file}: {error.strerror}", "check the path"
        ) from error
    if len(data) > MAX_KEY_BYTES:
        raise UsageError(f"{file} is too large for an API key", "write the key alone into a file")
    if os.name == "posix" and mode & 0o077:
        talk_notes([f"other users can read or change {file}: chmod 600 {file}"])
    return data.decode("latin-1").strip()


def _announce(address: str, names: Iterable[str], notes: Iterable[str]) -> None:
    talk(f"serving {', '.join(names) or 'the lab'} at {address}")
    talk_notes([*_from_elsewhere(address), *notes])


def _from_elsewhere(address: str) -> list[str]:
    """The address for other machines, if the server listens on all addresses of this one."""
    if urlsplit(address).hostname != "0.0.0.0":
        return []
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; the system chooses the address to use
        return [f"on other machines: {address.replace('0.0.0.0', probe.getsockname()[0])}"]
    return []
