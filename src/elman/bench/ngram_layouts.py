"""`elman bench ngram --layouts`: size, speed and perplexity of each layout, beside KenLM's.

    ours                             KenLM's, built from our ARPA file
    plain                            probing
    compact                          trie
    compact, --quantise 8            trie -q 8 -b 8 -a 22

The probabilities are the same, so the differences are those of the layouts. Sizes are those of the
files that answer queries: of ours, the model's and tokenizer.json. Scoring is from text to
perplexity on one thread, loading left out, as in `ngram`, but in processor time, which other work
on the machine changes less than the clock's. Quantised probabilities do not sum to one, so their
perplexity is not comparable to the others' by itself: `sum_error` in the settings is the mean
distance of a distribution's sum from one, `sum` the mean of the sums.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from elman.base.errors import ElmanError
from elman.bench.measuring import Cost, Work, in_turns, run_program
from elman.bench.rows import Row, less_is_better, more_is_better, note
from elman.ngrams.arpa_write import write_arpa
from elman.ngrams.compact import Bits, save_compact
from elman.ngrams.model import NgramModel
from elman.ngrams.reading import read_stretches
from elman.ngrams.statistics import fit
from elman.ngrams.storage import MODEL_FILE, load, open_model
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer

LAYOUTS: dict[str, tuple[Bits | None, tuple[str, ...]]] = {
    "plain": (None, ("probing",)),
    "compact": (Bits(), ("trie",)),
    "compact, 8 bits": (Bits(8, 8), ("-q", "8", "-b", "8", "-a", "22", "trie")),
}
"""Our layouts: bits, and the arguments of build_binary for the peer."""
_CONTEXTS = 200
"""Distributions whose sums are computed."""


def layout_rows(
    folder: Path,
    held_out: Path,
    build_binary: str | None,
    query: str | None,
    settings: dict[str, Any],
) -> Iterator[Row]:
    """Measure the model in `folder`/run; files are kept from an earlier call."""
    run, repeat = folder / "run", settings["repeat"]
    tokenizer = Tokenizer.load(run / TOKENIZER_FILE)
    models, binaries = _convert(folder, tokenizer, build_binary)
    ids = read_stretches([held_out]).ids(tokenizer)
    answers: dict[str, float] = {}

    def score(name: str) -> None:
        found = read_stretches([held_out], num_threads=1).ids(tokenizer)
        answers[name] = fit(models[name], found, num_threads=1).perplexity

    def ask(name: str, text: Path) -> Cost:
        told = folder / "answers.txt"
        assert query is not None
        cost = run_program([query, "-v", "summary", binaries[name]], stdin=text, stdout=told)
        if text == held_out and (line := re.search(r"including OOVs:\s*(\S+)", told.read_text())):
            answers[f"peer {name}"] = float(line[1])
        return cost

    nothing = folder / "nothing.txt"
    nothing.write_bytes(b"")
    works: dict[str, Work] = {}
    for name in models:
        works[name] = partial(score, name)
        if query is not None and name in binaries:
            works[f"peer {name}"] = partial(ask, name, held_out)
            works[f"loading {name}"] = partial(ask, name, nothing)
    for name in models:  # page the models in, as KenLM does when it loads
        score(name)
        score(name)
    note("scoring")
    costs = in_turns(works, repeat)
    settings = settings | {"scored": len(ids), "threads": 1}
    vocabulary = (run / TOKENIZER_FILE).stat().st_size
    for name, model in models.items():
        peer = binaries.get(name)
        size = _path(folder, name).stat().st_size + vocabulary
        theirs = None if peer is None else peer.stat().st_size / 1e6
        of_it = {"tokenizer_megabytes": vocabulary / 1e6}
        yield less_is_better(f"{name}: size", size / 1e6, theirs, "MB", **settings, **of_it)
        rate = None
        if f"peer {name}" in costs:
            whole, loading = costs[f"peer {name}"], costs[f"loading {name}"]
            seconds = whole.cpu_seconds - loading.cpu_seconds
            rate = len(ids) / max(1e-9, seconds)
        mine = len(ids) / costs[name].cpu_seconds
        yield more_is_better(f"{name}: scoring, 1 thread", mine, rate, "tokens/s", **settings)
        sums = _sums(model, ids)
        yield less_is_better(
            f"{name}: perplexity",
            answers[name],
            answers.get(f"peer {name}"),
            "",
            **settings,
            sum=float(sums.mean()),
            sum_error=float(abs(sums - 1).mean()),
        )


def _convert(
    folder: Path, tokenizer: Tokenizer, build_binary: str | None
) -> tuple[dict[str, NgramModel], dict[str, Path]]:
    """Write and open our models, and write KenLM's; what is there is kept."""
    plain, header = load(folder / "run" / MODEL_FILE)
    models: dict[str, NgramModel] = {}
    binaries: dict[str, Path] = {}
    arpa = folder / "ours.arpa"
    for name, (bits, arguments) in LAYOUTS.items():
        path = _path(folder, name)
        if bits is not None and not path.exists():
            note(f"writing {name}")
            extra = {key: header[key] for key in ("tokenizer", "vocab_size")}
            save_compact(path, plain, bits, extra)
        models[name] = open_model(path)[0]
        if build_binary is None:
            continue
        binaries[name] = folder / f"{'-'.join(arguments).replace('--', '-').strip('-')}.bin"
        if not binaries[name].exists():
            if not arpa.exists():
                note("writing the ARPA file")
                write_arpa(arpa, plain, tokenizer.spellings(), unknown_id=tokenizer.unknown_id)
            note(f"build_binary {' '.join(arguments)}")
            part = binaries[name].with_suffix(".part")
            run_program([build_binary, "-T", folder / "sorting", *arguments, arpa, part])
            part.rename(binaries[name])
    return models, binaries


def _path(folder: Path, name: str) -> Path:
    if name == "plain":
        return folder / "run" / MODEL_FILE
    return folder / f"{name.replace(', ', '-').replace(' ', '-')}.safetensors"


def _sums(model: NgramModel, ids: Any) -> Any:
    """The sums of some distributions, after contexts that the text has."""
    length = max(1, model.order - 1)
    places = np.linspace(length, len(ids) - 1, _CONTEXTS).astype(np.int64)
    sums = []
    for place in places.tolist():
        logprobs = model.distributions(ids[None, place - length : place].astype(np.int64))
        sums.append(np.exp(logprobs.astype(np.float64)).sum())
    if not sums:
        raise ElmanError("the text to score is too short", "give more tokens")
    return np.array(sums)
