"""Every setting of decoding, the same words on the command line, in Python and over HTTP."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from elman.base.config import at_least, between
from elman.base.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """How the next token is chosen; the default is pure sampling from the distribution."""

    max_tokens: int = 256
    """Stop after this many new tokens."""
    temperature: float = 1.0
    """Divide log probabilities by this: below 1 sharpens, above 1 flattens, 0 is greedy."""
    top_k: int = 0
    """Draw among the k most likely tokens only; 0 keeps them all."""
    top_p: float = 1.0
    """Draw from the fewest most likely tokens that together have at least this probability."""
    min_p: float = 0.0
    """Drop tokens less likely than this fraction of the most likely token's probability."""
    greedy: bool = False
    """Always take the most likely token."""
    beam_size: int = 1
    """Keep this many hypotheses and return the most probable whole; 1 is no beam search."""
    length_penalty: float = 0.6
    """Beams compare log P / ((5 + length) / 6) to this power; 0 favours short hypotheses."""
    coverage_penalty: float = 0.0
    """Beams of a model with attention lose this times log(share) for each part of what was given
    that was looked at less than once in all; 0.2 is customary."""
    frequency_penalty: float = 0.0
    """Taken off a token's log probability for each time it was generated (-2 to 2)."""
    presence_penalty: float = 0.0
    """Taken off a token's log probability once if it was generated at all (-2 to 2)."""
    logit_bias: dict[int, float] = field(default_factory=dict)
    """Added to the log probabilities of single token ids; -100 all but bans a token."""
    num_samples: int = 1
    """How many continuations of each prompt: as many draws, or the best of the beam."""
    seed: int | None = None
    """Makes draws repeatable; row i of a batch draws with seed + i. None differs every time."""

    def __post_init__(self) -> None:
        # JSON and TOML know only strings as keys.
        try:
            bias = {int(token): float(value) for token, value in self.logit_bias.items()}
        except (TypeError, ValueError) as error:
            raise UsageError(
                "logit_bias maps token ids to numbers", "for example {42: -100}"
            ) from error
        object.__setattr__(self, "logit_bias", bias)

        at_least("max_tokens", self.max_tokens, 1)
        at_least("num_samples", self.num_samples, 1)
        at_least("beam_size", self.beam_size, 1)
        at_least("top_k", self.top_k, 0)
        if self.seed is not None:
            at_least("seed", self.seed, 0)
        between(
            "temperature",
            self.temperature,
            0.0,
            math.inf,
            "try 0.7 for less surprising text, 0 for greedy",
        )
        between("top_p", self.top_p, 0.0, 1.0, "try 0.9; 1 keeps every token")
        between("min_p", self.min_p, 0.0, 1.0, "try 0.05; 0 keeps every token")
        between("length_penalty", self.length_penalty, 0.0, math.inf, "0.6 is customary, 0 is none")
        between("coverage_penalty", self.coverage_penalty, 0.0, math.inf, "0 is none")
        between("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "try 0.5; 0 is none")
        between("presence_penalty", self.presence_penalty, -2.0, 2.0, "try 0.5; 0 is none")
        if any(math.isnan(value) for value in bias.values()):
            raise UsageError(
                "logit_bias has a value that is not a number", "use -100 to ban a token"
            )
        if self.beam_size > 1:
            self._check_beam()

    def _check_beam(self) -> None:
        settings = {
            "greedy": self.greedy,
            "temperature": self.temperature != 1.0,
            "top_k": self.top_k,
            "top_p": self.top_p != 1.0,
            "min_p": self.min_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
        }
        changed = [name for name, value in settings.items() if value]
        if changed:
            raise UsageError(f"beam search does not use {changed[0]}", "drop it, or drop beam_size")
        if self.num_samples > self.beam_size:
            raise UsageError(
                f"a beam of {self.beam_size} cannot return {self.num_samples} hypotheses",
                f"set beam_size to {self.num_samples} or more",
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken, so that nothing is drawn."""
        return self.greedy or self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether the choice depends on how often a token was generated before."""
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0
