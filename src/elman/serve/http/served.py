"""What is served: models by name, what each of them can do, and how much may be asked.

A request names a model by its served name, never by a path, so nobody can make the server open a
file.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.api import LM, load
from elman.api.elmo import Elmo
from elman.base.errors import UsageError, nearest
from elman.decode.config import DecodeConfig
from elman.models.interface import NeuralLanguageModel
from elman.models.recurrent import RecurrentLM
from elman.nn.kernels import stream
from elman.serve.engine import Engine, Notify
from elman.serve.streams import Request


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much may be asked of the server; what exceeds it is refused with a 4xx answer."""

    max_body_bytes: int = 4 << 20
    """Size of a request."""
    max_body_seconds: float = 20.0
    """Time in which a request must have arrived."""
    max_depth: int = 16
    """Lists and objects within each other in a request."""
    max_prompt_tokens: int = 1 << 16
    """Tokens of one prompt or text."""
    max_tokens: int = 8192
    """Tokens of one continuation."""
    max_choices: int = 256
    """Continuations of one request, over all its prompts."""
    max_streams: int = 256
    """Continuations of one model that advance together; others wait."""
    max_waiting: int = 1024
    """Continuations of one model that may wait."""
    max_seconds: float = 300.0
    """Time for one request."""


def _is_lm(handle: object) -> bool:
    return isinstance(handle, LM)


ABILITIES: dict[str, Callable[[Any], bool]] = {
    "complete": _is_lm,
    "score": _is_lm,
    "next": _is_lm,
    "embed": lambda handle: (
        isinstance(handle, Elmo)
        or (_is_lm(handle) and isinstance(handle.model, NeuralLanguageModel))
    ),
    "inside": lambda handle: _is_lm(handle) and isinstance(handle.model, RecurrentLM),
    "tag": lambda handle: callable(getattr(handle, "tag", None)),
    "classify": lambda handle: callable(getattr(handle, "classify", None)),
    "translate": lambda handle: callable(getattr(handle, "translate", None)),
}
"""What a model can be asked for, and how to see whether it can: by what `elman.load` gave."""


class Served:
    """One model under its served name. Close it when done."""

    def __init__(
        self, name: str, handle: Any, limits: Limits, notify: Notify | None = None
    ) -> None:
        self.name = name
        self.handle = handle
        self.created = int(time.time())
        self.kind = str(handle.info().get("kind", "model"))
        """What it is, in a word."""
        self.notes = [f"{name}: {note}" for note in getattr(handle, "notes", ())]
        """What one should know before trusting its figures; mostly nothing."""
        self.abilities = [ability for ability, has in ABILITIES.items() if has(handle)]
        self.engine: Engine | None = None
        if "complete" in self.abilities:
            self.engine = Engine(
                handle.decoding,
                boundary_id=handle.tokenizer.boundary_id,
                end_ids=handle.end_ids(),
                max_streams=limits.max_streams,
                max_waiting=limits.max_waiting,
                notify=notify,
                name=name,
            )

    def warm_up(self) -> None:
        """Say a word to nobody: the first of anything takes longer, and steps may be compiled."""
        if self.engine is not None:
            request = Request(prompt=(), config=DecodeConfig(max_tokens=2, seed=0))
            # Alone and together, which are not the same steps.
            for number in (1, min(stream.FEW_ROWS + 1, self.engine.max_waiting)):
                for spoken in self.engine.submit(*[request] * number):
                    self.engine.wait(spoken)

    def close(self) -> None:
        """End its streams."""
        if self.engine is not None:
            self.engine.close()


def open_models(
    models: Sequence[str], limits: Limits, *, device: str = "auto", notify: Notify | None = None
) -> dict[str, Served]:
    """Open models given as `MODEL` or `name=MODEL`; each under a name of its own."""
    served: dict[str, Served] = {}
    try:
        for text in models:
            name, path = split_name(text)
            if name in served:
                raise UsageError(
                    f"two models would be served as '{name}'",
                    f"name one of them: other={path}",
                )
            served[name] = Served(name, load(path, device=device), limits, notify)
            served[name].warm_up()
    except BaseException:
        for one in served.values():
            one.close()
        raise
    return served


def split_name(text: str) -> tuple[str, str]:
    """`name=MODEL` as the two; where there is no name, it is the last part of each path."""
    found = re.fullmatch(r"([\w.:-]+)=(.+)", text)
    if found and not Path(text).exists():
        return found[1], found[2]
    terms = text.split("+") if not Path(text).exists() else [text]
    names = []
    for term in terms:
        weight, star, path = term.strip().rpartition("*")
        stem = Path(path.strip().rstrip("/")).name
        stem = re.sub(r"(?i)\.(arpa|lm)(\.gz|\.zst)?$", "", stem) or "model"
        names.append(f"{weight.strip()}{star}{stem}")
    return "+".join(names), text


def find(served: dict[str, Served], name: str | None) -> Served | None:
    """The model of this name, the first one where there is none."""
    if name is None:
        return next(iter(served.values()))
    return served.get(name)


def unknown_model(served: dict[str, Served], name: str) -> str:
    """A sentence for whoever asks for a model that is not served."""
    return f"the model '{name[:100]}' is not served here; {nearest(name[:100], served)}"
