"""A continuation that is asked for, and its stream of tokens.

The engine's thread writes, one reader reads. Lists only grow, and `finish_reason` is set last, so
no lock is needed. A slow reader delays no other stream: its tokens wait in the lists, and if
`max_unread` of them wait, its stream pauses until some are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.base.errors import ElmanError
from elman.decode.options import DecodeOptions
from elman.decode.random_numbers import Generator

Alternatives = tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """A request for tokens, in ids."""

    prompt: tuple[int, ...]
    """Without the boundary token, which is read first."""
    config: DecodeOptions | None
    """Decoding options (`num_samples` is ignored); None to read the prompt only."""
    num_alternatives: int = 0
    """Most likely tokens to report beside each token."""
    score_prompt: bool = False
    """Report log probabilities and alternatives of the prompt's tokens too."""
    max_unread: int | None = None
    """Pause while the reader has not read this many tokens; None: never."""


@dataclass(eq=False)
class Stream:
    """The tokens of one continuation."""

    continuation: Continuation
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Natural, of the model's own distribution; those of alternatives too."""
    alternatives: list[Alternatives] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    prompt_alternatives: list[Alternatives] = field(default_factory=list)
    num_cached: int = 0
    """Prompt tokens that were not read, because the state after them was cached."""
    finish_reason: str | None = None
    """`stop`, `length`, `cancelled` or `error`; None while the stream runs."""
    error: ElmanError | None = None
    cancelled: bool = False

    def __post_init__(self) -> None:
        config = self.continuation.config
        self.generator = Generator(None if config is None else config.seed)
        self.max_tokens = 0 if config is None else config.max_tokens
        unread = self.continuation.max_unread
        self.pause_at = self.max_tokens if unread is None else unread
        """Number of tokens at which to pause."""
        self.paused = False

    @property
    def can_go_on(self) -> bool:
        """Whether a paused stream need not pause any longer."""
        return self.cancelled or len(self.tokens) < self.pause_at

    def read(self, num_tokens: int) -> None:
        """Note that the first `num_tokens` have been read."""
        if self.continuation.max_unread is not None:
            self.pause_at = num_tokens + self.continuation.max_unread

    def cancel(self) -> None:
        """Ask for no more tokens."""
        self.cancelled = True
