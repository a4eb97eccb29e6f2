"""Apply the options --adapt, --cache, --temperature, --samples, --dropout-scale, --tune and --set
to a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from elman.base.config import parse_overrides
from elman.base.errors import UsageError, nearest
from elman.terminal.console import duration, number, talk, talk_notes

WAYS = ("adapt", "cache")
SHOWN = ("rate", "decay", "theta", "weight")
"""Settings that tuning finds."""


def ways_to_adapt(
    *,
    adapt: bool,
    cache: bool,
    settings: Sequence[str] | None = None,
    temperature: float | None = None,
    samples: int | None = None,
    dropout_scale: float | None = None,
) -> dict[str, Any]:
    """The arguments of a handle's `adapting`; empty if no way was chosen."""
    chosen = {"adapt": adapt, "cache": cache}
    given = parse_overrides(settings or ())
    for name, inner in given.items():
        if name not in WAYS:
            raise UsageError(f"there is no setting '{name}' of adaptation", nearest(name, WAYS))
        if not chosen[name]:
            raise UsageError(f"settings of {name} need --{name}", f"add --{name}")
        if not isinstance(inner, dict):
            raise UsageError(f"'{name}' has several settings", f"write --set {name}.NAME=VALUE")
    ways: dict[str, Any] = {name: given.get(name, True) for name in WAYS if chosen[name]}
    if dropout_scale is not None and samples is None:
        raise UsageError("--dropout-scale has no effect without --samples", "add --samples N")
    predicting = {"temperature": temperature, "samples": samples, "dropout_scale": dropout_scale}
    return ways | {name: value for name, value in predicting.items() if value is not None}


def adapted(handle: Any, ways: dict[str, Any], tune: Sequence[str] | None = None) -> Any:
    """Return the handle as one that adapts, if that was asked for."""
    if not ways and not tune:
        return handle
    if not hasattr(handle, "adapting"):
        flags = " and ".join(f"--{way}" for way in [*ways, *(["tune"] if tune else [])])
        raise UsageError(f"{handle.name} is {handle.what}, which does not adapt", f"drop {flags}")
    if not tune:
        return handle.adapting(**ways, on_note=_say)

    best: dict[int, Any] = {}

    def say(trial: Any) -> None:
        is_best = trial.perplexity <= getattr(best.get(trial.model), "perplexity", math.inf)
        if is_best:
            best[trial.model] = trial
        elif not trial.seconds:  # one of many temperatures, from one reading
            return
        place = f"model {trial.model + 1}: " if handle.parts else ""
        text = f"{place}{trial.setting}: perplexity {number(trial.perplexity)}"
        if trial.seconds:
            text += f" of {trial.num_tokens:,} tokens, {duration(trial.seconds)}"
        if trial.left:
            text += f"; at least {trial.left} more, {duration(trial.left * trial.seconds)}"
        talk(text)

    try:
        found = handle.adapting(**ways, tune=tune, on_trial=say, on_note=_say)
    except KeyboardInterrupt:
        for trial in best.values():
            talk(f"interrupted; the best so far: {trial.setting}")
        raise
    for place, one in enumerate(found.adaptation, start=1):
        parts = {way: one[way] for way in WAYS if way in one}
        values = {f"{way}.{name}": part.get(name) for way, part in parts.items() for name in SHOWN}
        words = [f"--set {name}={v:g}" for name, v in values.items() if v is not None]
        for name in ("dropout_scale", "temperature"):
            words += [f"--{name.replace('_', '-')} {one[name]:g}"] if name in one else []
        text = " ".join(words)
        talk(f"found{f' for model {place}' if handle.parts else ''}: {text}")
    return found


def _say(note: str) -> None:
    talk_notes([note])
