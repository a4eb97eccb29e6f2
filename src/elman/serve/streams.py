"""A stream: one request for tokens, and the tokens as they come.

The engine's thread writes, one reader reads. Lists only grow, and `finish_reason` is set last, so
neither needs a lock; a reader that falls behind finds its tokens waiting, as many as the request
may have, and holds nobody up.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from elman.base.errors import ElmanError
from elman.decode.options import DecodeOptions

Alternatives = tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of the model, in ids."""

    prompt: tuple[int, ...]
    """Read after the boundary token."""
    config: DecodeOptions | None
    """How it is continued, once (`num_samples` is not read); None where it is only read."""
    num_alternatives: int = 0
    """How many of the most likely tokens are told beside each token."""
    score_prompt: bool = False
    """Whether the prompt's own tokens get log probabilities and alternatives too."""


@dataclass(eq=False)
class Stream:
    """The tokens of one request."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Natural, under the model's own distribution, as are the alternatives'."""
    alternatives: list[Alternatives] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    """Of each token of the prompt, where the request asks for them."""
    prompt_alternatives: list[Alternatives] = field(default_factory=list)
    num_cached: int = 0
    """How many tokens of the prompt were not read, because their state was known."""
    finish_reason: str | None = None
    """`stop`, `length`, `cancelled` or `error`; None while more may come."""
    error: ElmanError | None = None
    cancelled: bool = False
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        config = self.request.config
        seed = None if config is None else config.seed
        self.generator = random.Random(seed)
        self.max_tokens = 0 if config is None else config.max_tokens
        """How many tokens are to come, at most."""

    def cancel(self) -> None:
        """Ask for no more tokens; the stream's place is free before the next one."""
        self.cancelled = True
