"""The decoding options, each defined once: name, default, range and prose.

The options of `elman generate`, `translate` and `caption`, the fields of `/v1/completions` and the
reference page are made from the fields of `DecodeOptions` and their metadata:

    low, high, hint   the range, checked here, and what to try instead
    scheme            which decoding reads the option: `any`, `draw` (of tokens at random),
                      `sample` (token by token, greedy included) or `beam`
    command           the command that offers it; None: no command does
    flag, metavar     its name there, `--` and the field's name by default, and its value's name
    http              its field in a request; None: no field
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, TypedDict

from elman.base.config import describe, from_dict
from elman.base.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Http:
    """How an option differs in a request; None: as in Python. An infinite limit: no limit."""

    name: str | None = None
    default: Any = None
    low: float | None = None
    high: float | None = None
    extension: bool = False
    """Whether the OpenAI API lacks the field."""


def _option(
    default: Any,
    low: float = -math.inf,
    high: float = math.inf,
    hint: str | None = None,
    *,
    scheme: Literal["any", "draw", "sample", "beam"] = "any",
    command: str | None = "generate",
    flag: str | None = None,
    metavar: str = "N",
    http: Http | None = None,
) -> Any:
    facts = {
        "default": default,
        "low": low,
        "high": high,
        "scheme": scheme,
        "command": command,
        "flag": flag,
        "metavar": metavar,
        "http": http,
        "hint": hint or f"use {low:g} or more",
    }
    made: dict[str, Any] = {"default_factory": dict} if default is dict else {"default": default}
    return field(**made, metadata=facts)


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """How the next token is chosen. The default samples from the model's distribution."""

    max_tokens: int = _option(256, 1, http=Http(default=16, low=0))
    """Stop after this many new tokens."""
    temperature: float = _option(
        1.0,
        0,
        hint="try 0.7 for less surprising text, 0 for greedy",
        scheme="draw",
        metavar="X",
        http=Http(high=2),
    )
    """Divide log probabilities by this: below 1 sharpens, above 1 flattens, 0 is greedy."""
    top_k: int = _option(0, 0, scheme="draw", http=Http(extension=True))
    """Draw from the k most likely tokens only; 0 keeps all."""
    top_p: float = _option(
        1.0, 0, 1, "try 0.9; 1 keeps every token", scheme="draw", metavar="X", http=Http()
    )
    """Draw from the fewest most likely tokens that together have at least this probability."""
    min_p: float = _option(
        0.0, 0, 1, "try 0.05; 0 keeps all", scheme="draw", metavar="X", http=Http(extension=True)
    )
    """Drop tokens less likely than this fraction of the most likely token's probability."""
    greedy: bool = _option(False, scheme="sample")
    """Always take the most likely token."""
    beam_size: int = _option(
        1, 1, scheme="beam", flag="--beam", metavar="K", http=Http(high=64, extension=True)
    )
    """Beam size: search with this many hypotheses; 1 turns beam search off."""
    length_penalty: float = _option(
        0.6,
        0,
        hint="0.6 is customary, 0 turns it off",
        scheme="beam",
        metavar="X",
        http=Http(high=10, extension=True),
    )
    """Beams compare log P / ((5 + length) / 6) to this power; 0 favours short hypotheses."""
    coverage_penalty: float = _option(
        0.0, 0, hint="0 turns it off", scheme="beam", command="translate", metavar="X"
    )
    """Beams of a model with attention add this times log(attention received) for each source
    position that received less than 1 in total; 0.2 is customary."""
    frequency_penalty: float = _option(
        0.0, -2, 2, "try 0.5; 0 turns it off", scheme="sample", metavar="X", http=Http()
    )
    """Subtract this from a token's log probability for each time it was generated (-2 to 2)."""
    presence_penalty: float = _option(
        0.0, -2, 2, "try 0.5; 0 turns it off", scheme="sample", metavar="X", http=Http()
    )
    """Subtract this once from the log probability of a token generated before (-2 to 2)."""
    logit_bias: dict[int, float] = _option(dict, command=None, http=Http())  # noqa: RUF009
    """Add to the log probabilities of single token ids; -100 all but bans a token."""
    unk: bool = _option(False, http=Http(extension=True))
    """Allow the token for unknown words in the output."""
    num_samples: int = _option(1, 1, http=Http(name="n"))
    """Number of continuations of each prompt: that many draws, or the best of the beam."""
    seed: int | None = _option(None, 0, http=Http(low=-math.inf))
    """Random seed; row i of a batch uses seed + i. By default a new one each time."""

    def __post_init__(self) -> None:
        # JSON and TOML know only strings as keys.
        try:
            bias = {int(token): float(value) for token, value in self.logit_bias.items()}
        except (TypeError, ValueError) as error:
            raise UsageError(
                "logit_bias maps token ids to numbers", "for example {42: -100}"
            ) from error
        object.__setattr__(self, "logit_bias", bias)
        if any(math.isnan(value) for value in bias.values()):
            raise UsageError("logit_bias has a value that is NaN", "use -100 to ban a token")
        for name, low, high, hint in _RANGES:
            value = getattr(self, name)
            if value is not None and (not low <= value <= high or value == math.inf):
                raise UsageError(f"{name} cannot be {value}", hint)
        if self.beam_size > 1:
            self._check_beam()

    def _check_beam(self) -> None:
        for name in (*names(scheme="draw"), *names(scheme="sample")):
            if getattr(self, name) != getattr(type(self), name):
                raise UsageError(f"beam search does not use {name}", "drop it, or drop beam_size")
        if self.num_samples > self.beam_size:
            raise UsageError(
                f"a beam of {self.beam_size} cannot return {self.num_samples} hypotheses",
                f"set beam_size to {self.num_samples} or more",
            )

    def without_unknown(self, unknown_id: int | None) -> DecodeOptions:
        """These options with the token for unknown words ruled out, unless `unk` or a bias of it
        asks for it."""
        if self.unk or unknown_id is None or unknown_id in self.logit_bias:
            return self
        return replace(self, logit_bias={**self.logit_bias, unknown_id: -math.inf})

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken, so that nothing is drawn."""
        return self.greedy or self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether the choice depends on how often a token was generated before."""
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0


class DecodeKeywords(TypedDict, total=False):
    """The fields of `DecodeOptions` as keywords, for editors and type checkers."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    greedy: bool
    beam_size: int
    length_penalty: float
    coverage_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: dict[int, float]
    unk: bool
    num_samples: int
    seed: int | None


_RANGES = [
    (f.name, f.metadata["low"], f.metadata["high"], f.metadata["hint"])
    for f in fields(DecodeOptions)
    if isinstance(f.default, (int, float)) or f.default is None
]


def names(**facts: str) -> tuple[str, ...]:
    """The options whose metadata have these values: `names(scheme="beam")`."""
    return tuple(f.name for f in fields(DecodeOptions) if facts.items() <= f.metadata.items())


CONDITIONAL = DecodeOptions(beam_size=5, length_penalty=1.0)
"""The defaults for texts that depend on something: translations, captions."""


def read_options(given: Mapping[str, Any]) -> DecodeOptions:
    """Options that a person gave; those that would have no effect are refused."""
    options = from_dict(DecodeOptions, given)
    idle = [n for n in names(scheme="draw") if getattr(options, n) != getattr(DecodeOptions, n)]
    if options.greedy and idle:
        raise UsageError("greedy decoding does not sample", f"drop greedy or {idle[0]}")
    return options


def conditional_options(given: Mapping[str, Any]) -> DecodeOptions:
    """Options for a model that is given an input: a beam by default, unless draws are asked for."""
    usual: dict[str, Any] = {"length_penalty": CONDITIONAL.length_penalty}
    if not draws(given) and "seed" not in given:
        number = given.get("num_samples")
        size = CONDITIONAL.beam_size
        usual["beam_size"] = max(size, number) if isinstance(number, int) else size
    options = read_options({**usual, **given})
    idle = [n for n in names(scheme="beam") if n in given and n != "beam_size"]
    if options.beam_size == 1 and idle and draws(given):
        raise UsageError(
            f"{idle[0]} is an option of beam search", "drop it, or the sampling options"
        )
    return options


def draws(given: Mapping[str, Any]) -> bool:
    """Whether these options ask for draws or the greedy choice instead of beam search."""
    return not given.keys().isdisjoint((*names(scheme="draw"), "greedy"))


@dataclass(frozen=True, kw_only=True)
class HttpField:
    """An option as a field of a request."""

    name: str
    type: str
    """As `DecodeOptions` annotates it."""
    default: Any
    limits: dict[str, float]
    """`ge` and `le`, as pydantic names them."""
    prose: str


DRAWING = ("temperature", "top_k", "top_p", "min_p")
"""Options that change the distribution a token is drawn from."""
SEARCHING = ("beam_size", "length_penalty", "max_tokens")
"""Options of a beam search."""


@cache
def http_fields() -> dict[str, HttpField]:
    """The options that a request can have, by their names in Python."""
    found = {}
    for f, setting in zip(fields(DecodeOptions), describe(DecodeOptions), strict=True):
        http: Http | None = f.metadata["http"]
        if http is None:
            continue
        low = f.metadata["low"] if http.low is None else http.low
        high = f.metadata["high"] if http.high is None else http.high
        default = None if f.default is MISSING else f.default
        prose = " ".join(setting.prose.split())
        found[f.name] = HttpField(
            name=http.name or f.name,
            type=setting.type,
            default=default if http.default is None else http.default,
            limits={k: v for k, v in (("ge", low), ("le", high)) if not math.isinf(v)},
            prose=f"Extension: {prose[0].lower()}{prose[1:]}" if http.extension else prose,
        )
    return found
