"""N-gram models without a limit on n: from text files to a run folder.

    read      text to token ids, as for an n-gram model
    index     sort the suffixes of the text                              index.safetensors
    count     the Kneser-Ney model that matches are mixed into           ngram.safetensors
    fit       the weights of matches, on text that was not indexed       weights.json

torch is not imported, as for other counted models.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.files import owned_folder
from elman.base.origins import origin
from elman.batches.encoded import EncodedText
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import count
from elman.ngrams.kneser_ney import last_ngram
from elman.ngrams.scratch import Scratch, check_memory, memory_size
from elman.ngrams.smoothing import KneserNey, about, estimate
from elman.ngrams.stages import bytes_per_token, count_within
from elman.ngrams.storage import MODEL_FILE, load, save_estimate
from elman.ngrams.text_index import INDEX_FILE, TextIndex, load_index, save_index
from elman.ngrams.unbounded import (
    WEIGHTS_FILE,
    UnboundedModel,
    fit_weights,
    fixed_weights,
    load_weights,
    save_weights,
)
from elman.runs.new_folder import filling
from elman.runs.run_folder import CONFIG_FILE, TOKENIZER_FILE, require
from elman.tasks import counted
from elman.tasks.counted import CountedText, note
from elman.tasks.infinigram.settings import InfinigramRun
from elman.terminal.console import number, size
from elman.text.sources import corpus_blocks
from elman.tokens.kind import BOUNDARY
from elman.tokens.tokenizer import Tokenizer
from elman.train.report import Report

MOST_HELD_OUT = 500_000
"""Tokens that are held out at most: the weights are a hundred numbers."""


def fit(
    config: InfinigramRun,
    out: Path,
    *,
    memory: str | int | None = None,
    num_threads: int | None = None,
) -> Iterator[Report]:
    """Make a model in the new folder `out`; the last report has the summary.

    `memory` is the most memory to sort and count in, in bytes or as in "2G"; beyond it, both go to
    disk.
    """
    started = time.perf_counter()
    files = counted.check(config, out)
    memory = memory_size(memory) if isinstance(memory, str) else memory
    if memory is not None:
        check_memory(memory)
    with (
        filling(out, last=CONFIG_FILE) as folder,
        nullcontext() if memory is None else Scratch(limit=memory) as scratch,
    ):
        text = counted.read_text(files, config.tokenizer, scratch)
        yield from map(note, text.notes)
        tokenizer, num_tokens = text.tokenizer, len(text.ids)
        yield note(f"{num_tokens:,} tokens, {tokenizer.vocab_size:,} types")
        counting = time.perf_counter()
        left = None if scratch is None else scratch.budget("Python and the words of the text")
        maker = Maker(text, config.model.order, scratch, left, num_threads)
        valid = counted.encoded(config.data.valid, tokenizer)
        test = counted.encoded(config.data.test, tokenizer)
        weights = fixed_weights()
        num_held_out = min(MOST_HELD_OUT, int(num_tokens * config.model.held_out))
        if valid is None and num_held_out:
            cut = num_tokens - num_held_out
            part = f"the last {num_held_out:,} tokens"
            yield note(f"weights of the matches are fitted to {part}; then all tokens are indexed")
            with owned_folder() as place:
                weights = fit_weights(*maker.make(place, cut), text.ids[cut:], num_threads)
        lines = [(origin(file), _num_lines(file)) for file in files]
        index, backoff = maker.make(folder, num_tokens, lines)
        if valid is not None:
            other = "" if test is not None else "; --test measures the model on another one"
            yield note(f"weights of the matches are fitted to the validation text{other}")
            weights = fit_weights(index, backoff, valid.ids, num_threads)
        made = Made(config, out, folder, text, index, backoff, weights)
        yield from made.finish(
            valid,
            test,
            started=started,
            counting=counting,
            weights_from=_weights_from(config),
            num_threads=num_threads,
        )


def _weights_from(config: InfinigramRun) -> str:
    if config.data.valid:
        return "fitted on the validation text"
    return "fitted on the end of the text" if config.model.held_out else "fixed"


@dataclass(frozen=True)
class Made:
    """An index and a model in the folder of a new run."""

    config: InfinigramRun
    out: Path
    folder: Path
    """Where the files are until the run is complete."""
    text: CountedText
    index: TextIndex
    backoff: BackoffModel
    weights: NDArray[Any]

    def finish(
        self,
        valid: EncodedText | None = None,
        test: EncodedText | None = None,
        *,
        started: float,
        counting: float,
        weights_from: str,
        num_threads: int | None,
    ) -> Iterator[Report]:
        """Measure the model, and write the other files; `started` and `counting` are times."""
        index, backoff = self.index, self.backoff
        save_weights(self.folder / WEIGHTS_FILE, self.weights)
        self.text.tokenizer.save(self.folder / TOKENIZER_FILE)
        seconds_counting = time.perf_counter() - counting
        per_token = index.num_bytes / index.num_tokens
        yield note(f"index of {size(index.num_bytes)}, {per_token:.2f} bytes a token")
        notes = [*backoff.about["notes"]]
        if not index.files:
            notes.append(_why_no_lines(self.text.tokenizer))
        yield from map(note, notes)
        model = UnboundedModel(index, backoff, self.weights)
        summary: dict[str, Any] = {"out": str(self.out), "perplexity": None, "steps": 0}
        summary |= {"index_bytes": index.num_bytes, "bytes_per_token": per_token}
        summary |= counted.measured(model, self.text.tokenizer, valid, test, num_threads)
        summary |= {"ngrams": backoff.num_ngrams, "notes": notes}
        yield counted.finish(
            self.config,
            self.out,
            self.folder,
            self.text,
            summary,
            started=started,
            seconds_counting=seconds_counting,
            what="An n-gram model without a limit on n",
            rows=[
                f"| index | {size(index.num_bytes)}, {per_token:.2f} bytes a token |",
                f"| mixed into | Kneser-Ney of order {self.config.model.order} |",
                f"| weights of matches | {weights_from} |",
            ],
            sections=counted.uses('elman find FOLDER "SOME WORDS"'),
        )


@dataclass(frozen=True)
class Maker:
    """Makes the index and the Kneser-Ney model of the beginning of a text."""

    text: CountedText
    order: int
    scratch: Scratch | None
    memory: int | None
    num_threads: int | None

    def make(
        self,
        folder: Path,
        num_tokens: int,
        files: Sequence[tuple[str, int]] = (),
        parts: Sequence[TextIndex] = (),
    ) -> tuple[TextIndex, BackoffModel]:
        """Write both into a folder, and open them; `parts` are indexes to join."""
        ids, tokenizer = self.text.ids[:num_tokens], self.text.tokenizer
        header = {"tokenizer": tokenizer.hash, "vocab_size": tokenizer.vocab_size}
        save_index(
            folder / INDEX_FILE,
            ids,
            newlines_V=tokenizer.line_ends(),
            files=files,
            extra=header,
            scratch=self.scratch,
            memory=self.memory,
            num_threads=self.num_threads,
            parts=parts,
            **self.text.sizes,
        )
        self._save_backoff(folder / MODEL_FILE, ids, header)
        return load_index(folder / INDEX_FILE)[0], load(folder / MODEL_FILE)[0]

    def _save_backoff(self, path: Path, ids: NDArray[Any], header: dict[str, Any]) -> None:
        sizes: dict[str, Any] = {**self.text.sizes, "num_threads": self.num_threads}
        needed = len(ids) * bytes_per_token(self.order)
        if self.scratch is not None and self.memory is not None and needed > self.memory:
            trie = count_within(ids, self.order, self.scratch, self.memory, **sizes)
        else:
            trie = count(ids, self.order, **sizes)
        last = last_ngram(ids, self.order, room=trie.room, **self.text.sizes)
        # Kneser-Ney counts contexts, of which single tokens have none.
        settings = KneserNey() if self.order > 1 else KneserNey(smoothing="witten-bell")
        trie, found = estimate(trie, settings, last=last, num_threads=self.num_threads)
        save_estimate(path, trie, found, about(settings, found), header)


def _why_no_lines(tokenizer: Tokenizer) -> str:
    """Say why the lines of an index are not those of its files."""
    if tokenizer.kind in ("word", "pretokenized"):
        why = f"the text itself contains {BOUNDARY}, which is read as the end of a line"
    else:
        why = "the tokenizer does not keep all line ends"
    return f"{why}: places in it have the number of a token instead of a file and a line"


def _num_lines(file: Path) -> int:
    """Count the lines of a file; a missing last line end counts."""
    return sum(block.data.count(b"\n") for block in corpus_blocks([file], end_lines=True))


def open_fitted(path: Path, config: InfinigramRun) -> Any:
    from elman.ngrams.mapped import damaged
    from elman.tasks.infinigram.model import UnboundedLM
    from elman.tasks.opening import checked_tokenizer

    require(path, INDEX_FILE, MODEL_FILE, WEIGHTS_FILE)
    index, header = load_index(path / INDEX_FILE)
    backoff, _ = load(path / MODEL_FILE)
    tokenizer: Tokenizer = checked_tokenizer(path, header)
    found = (tokenizer.vocab_size, tokenizer.boundary_id)
    for file, part in ((INDEX_FILE, index), (MODEL_FILE, backoff)):
        if found != (part.vocab_size, part.boundary_id):
            raise damaged(path / file, "it does not belong to the tokenizer beside it")
    model = UnboundedModel(index, backoff, load_weights(path / WEIGHTS_FILE))
    return UnboundedLM(model), tokenizer, header


def describe(run: Any) -> dict[str, Any]:
    """Values for `elman info`: the index, the n-grams of the Kneser-Ney model, figures."""
    model: UnboundedModel = run.model.counts
    index = model.index
    values = counted.describe(run, INDEX_FILE)
    weights_LN = np.asarray(model.weights_LN2, np.float64).max(axis=2)
    return values | {
        "bytes": values["bytes"] + (run.path / MODEL_FILE).stat().st_size,
        "index": {
            "tokens": index.num_tokens - 1,
            "bytes": index.num_bytes,
            "bytes_per_token": index.num_bytes / index.num_tokens,
            "files": [file for file, _ in index.files],
        },
        "ngrams": model.backoff.growth(),
        "largest_weight": float(weights_LN.max()),
        "notes": values["summary"].get("notes", []),
    }


def info_rows(part: dict[str, Any]) -> list[tuple[str, str]]:
    index = part["index"]
    amount = f"{index['tokens']:,} tokens, {size(index['bytes'])}"
    ngrams = sum(row["ngrams"] for row in part["ngrams"])
    return [
        ("index", f"{amount}, {index['bytes_per_token']:.2f} bytes a token"),
        ("mixed into", f"Kneser-Ney of order {len(part['ngrams'])}, {ngrams:,} n-grams"),
        *counted.counted_rows(part),
    ]


def summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    made = [
        (
            "index",
            f"{size(summary['index_bytes'])}, {summary['bytes_per_token']:.2f} bytes a token",
        ),
        ("n-grams", number(sum(summary["ngrams"]))),
    ]
    return counted.summary_table(summary, made)
