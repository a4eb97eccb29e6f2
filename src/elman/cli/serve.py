"""`elman serve`: models over HTTP, and the studio."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elman.terminal.console import talk, talk_notes
from elman.terminal.options import Device

if TYPE_CHECKING:
    from elman.serve.http.served import Served


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Run folders, ARPA files or mixtures; NAME=MODEL serves it under another name.",
            show_default=False,
        ),
    ],
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Where to listen; 0.0.0.0 is everywhere.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="0 takes a free one.")
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            envvar="ELMAN_API_KEY",
            help="What clients must send as a bearer token; better as ELMAN_API_KEY.",
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder of runs, whose curves the studio shows."),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN", help="Let pages of this origin use the API; may be repeated."
        ),
    ] = None,
    max_body: Annotated[int, typer.Option(min=1, metavar="BYTES", help="Largest request.")] = 4
    << 20,
    max_prompt: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most tokens of a prompt.")
    ] = 1 << 16,
    max_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most tokens of a continuation.")
    ] = 8192,
    max_choices: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most continuations in one request.")
    ] = 256,
    max_streams: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most continuations at once; others wait.")
    ] = 256,
    max_waiting: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most continuations that wait.")
    ] = 1024,
    max_seconds: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="Most seconds for one request.")
    ] = 300.0,
    threads: Annotated[
        int, typer.Option(min=0, metavar="N", help="Threads per computation; 0: half the cores.")
    ] = 0,
    device: Device = "auto",
) -> None:
    """Serve models over HTTP, and show them in a studio.

    Clients of the OpenAI API find /v1/completions, /v1/embeddings and /v1/models; the studio is at
    the address that is printed, and /docs lists every route. Ctrl-C lets those who are being
    answered finish, for a few seconds.
    """
    from elman.serve.http.app import serve_models
    from elman.serve.http.served import Limits

    limits = Limits(
        max_body_bytes=max_body,
        max_prompt_tokens=max_prompt,
        max_tokens=max_tokens,
        max_choices=max_choices,
        max_streams=max_streams,
        max_waiting=max_waiting,
        max_seconds=max_seconds,
    )
    serve_models(
        models,
        host=host,
        port=port,
        limits=limits,
        api_key=api_key,
        cors=cors or (),
        runs=runs,
        threads=threads,
        device=device,
        on_start=_tell,
    )


def _tell(address: str, served: dict[str, Served]) -> None:
    talk(f"serving {', '.join(served)} at {address}")
    talk_notes(note for one in served.values() for note in one.notes)
