"""`elman serve`: models over HTTP, and the studio."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from elman.serve.limits import Limits
from elman.terminal.console import talk, talk_notes
from elman.terminal.options import Device, argument, option, with_options

if TYPE_CHECKING:
    from elman.serve.http.served import Served


@with_options(Limits, *(f.name for f in fields(Limits) if f.metadata))
def serve(
    models: Annotated[
        list[str],
        argument("MODEL...", "Run folders, ARPA files or mixtures; NAME=MODEL sets the name."),
    ],
    host: Annotated[str, option("HOST", "Address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, option("N", "Port; 0: any free one.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None,
        option(
            "KEY",
            "The bearer token that clients must send; safer as ELMAN_API_KEY.",
            envvar="ELMAN_API_KEY",
        ),
    ] = None,
    runs: Annotated[
        Path | None, option("DIR", "A folder of runs whose curves the studio shows.")
    ] = None,
    cors: Annotated[
        list[str] | None, option("ORIGIN", "Let pages of this origin use the API; may be repeated.")
    ] = None,
    *,
    options: dict[str, Any],
    threads: Annotated[int, option("N", "Threads per computation; 0: half the cores.", min=0)] = 0,
    device: Device = "auto",
) -> None:
    """Serve models over HTTP, and show them in a studio.

    The API is compatible with OpenAI's (/v1/completions, /v1/embeddings, /v1/models). The printed
    address is the studio's; /docs lists every route. Ctrl-C waits a few seconds for open requests.
    """
    from elman.serve.http.app import serve_models

    serve_models(
        models,
        host=host,
        port=port,
        limits=Limits(**options),
        api_key=api_key,
        cors=cors or (),
        runs=runs,
        threads=threads,
        device=device,
        on_start=_announce,
    )


def _announce(address: str, served: dict[str, Served]) -> None:
    talk(f"serving {', '.join(served)} at {address}")
    talk_notes(note for one in served.values() for note in one.notes)
