"""An n-gram model that is made in stages, over files in the folder `stages` of its run.

    plan      the tokenizer, the token ids, config.json          elman train ngram --plan N
    count     each shard                                         elman ngram count RUN --shard I
    merge     each range of first tokens                         elman ngram merge RUN --range I
    estimate  counts to probabilities                            elman ngram estimate RUN
    join      the run folder; the stages are removed             elman ngram join RUN

`elman train ngram` runs them all where counting goes to disk or to a cluster, and with `--resume`
those that are left. The model is the one that is counted in memory, byte for byte.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from elman.base.config import from_dict, to_dict
from elman.base.errors import UsageError
from elman.base.files import sync, write_text
from elman.batches.encoded import EncodedText
from elman.ngrams.kneser_ney import last_ngram
from elman.ngrams.scratch import Scratch
from elman.ngrams.smoothing import about, estimate
from elman.ngrams.stages import PLAN_FILE, Stages
from elman.ngrams.statistics import unseen
from elman.ngrams.storage import MODEL_FILE, save_estimate
from elman.ngrams.trie import CountTrie
from elman.runs.origin import signature
from elman.runs.run_folder import STAGES_FOLDER, TOKENIZER_FILE, write_config
from elman.tasks import counted
from elman.tasks.counted import CountedText
from elman.tasks.ngram.settings import NgramRun
from elman.tasks.opening import read_config
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig

_HELD_OUT_FILE, _ESTIMATE_FILE = "held-out.npy", "estimate.json"


class StagedRun:
    """The stages of the run in the folder `out`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / STAGES_FOLDER

    @property
    def is_planned(self) -> bool:
        return (self.folder / PLAN_FILE).is_file()

    @property
    def is_estimated(self) -> bool:
        return (self.folder / _ESTIMATE_FILE).is_file()

    def remove(self) -> None:
        if self.folder.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            sync(self.folder.parent)

    def plan(
        self,
        config: NgramRun,
        text: CountedText,
        held_out: EncodedText | None,
        files: Sequence[Path],
        num_shards: int,
        num_ranges: int,
        arpa: Path | None,
        *,
        packed: bool = False,
    ) -> None:
        """Write what the stages need; `held_out` is the part of the text not to be counted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_config(self.folder, config, signature(config))
        text.tokenizer.save(self.folder / TOKENIZER_FILE)
        if held_out is not None:
            np.save(self.folder / _HELD_OUT_FILE, held_out.ids)
        recorded = {
            "tokenizer": to_dict(text.tokens),
            "num_bytes": text.num_bytes,
            "held_out_bytes": None if held_out is None else held_out.num_bytes,
            "files": _identities(files),
            "arpa": None if arpa is None else str(arpa),
        }
        Stages.create(
            self.folder, text.ids, config.model.order, **text.sizes,
            num_shards=num_shards, num_ranges=num_ranges, about=recorded, packed=packed,
        )  # fmt: skip
        self.text = replace(text, ids=self.stages.ids())

    @cached_property
    def stages(self) -> Stages:
        return Stages(self.folder)

    @cached_property
    def config(self) -> NgramRun:
        found = read_config(self.folder)
        if not isinstance(found, NgramRun):
            raise UsageError(f"{self.out} is not an n-gram run", "name the folder of one")
        return found

    @cached_property
    def text(self) -> CountedText:
        plan = self.stages.plan
        return CountedText(
            self.stages.ids(),
            Tokenizer.load(self.folder / TOKENIZER_FILE),
            from_dict(TokenizerConfig, plan.about["tokenizer"]),
            plan.about["num_bytes"],
        )

    @property
    def arpa(self) -> Path | None:
        """The ARPA file that the run is to write."""
        name = self.stages.plan.about["arpa"]
        return None if name is None else Path(name)

    def held_out(self) -> EncodedText | None:
        """The validation text, or the part of the text that is not counted."""
        if self.config.data.valid:
            return counted.encoded(self.config.data.valid, self.text.tokenizer)
        size = self.stages.plan.about["held_out_bytes"]
        if size is None:
            return None
        return EncodedText(np.load(self.folder / _HELD_OUT_FILE), num_bytes=size)

    def check_texts(self, files: Sequence[Path]) -> None:
        """Refuse to continue a run whose text has changed since."""
        before, now = self.stages.plan.about["files"], _identities(files)
        for old, new in zip(before, now, strict=False):
            if old != new:
                raise UsageError(
                    f"{new[0]} has changed since the run began", "start again with --overwrite"
                )
        if len(before) != len(now):
            raise UsageError(
                f"the run began with {len(before)} files, not {len(now)}",
                "start again with --overwrite",
            )

    def estimate(self, limit: int | None = None, num_threads: int | None = None) -> None:
        """Write the model of the merged counts, in memory below `limit` bytes where possible."""
        if self.is_estimated:
            return
        self.stages.join(num_threads)
        with Scratch(self.folder, limit) as scratch:
            ids = self.stages.ids(scratch.open)
            trie = self.stages.trie(scratch, num_threads)
            last = last_ngram(ids, self.config.model.order, room=trie.room, **self.text.sizes)
            found = save_model(
                self.folder / MODEL_FILE, self.config, trie, self.text, self.held_out(), last,
                num_threads,
            )  # fmt: skip
            del trie, ids
        write_text(self.folder / _ESTIMATE_FILE, json.dumps(found))
        self.stages.clear()

    def hand_over(self, folder: Path) -> dict[str, Any]:
        """Give the model and its tokenizer to the run folder; return figures for the summary."""
        for name in (MODEL_FILE, TOKENIZER_FILE):
            try:
                os.link(self.folder / name, folder / name)
            except OSError:  # a file system without links
                shutil.copyfile(self.folder / name, folder / name)
        found: dict[str, Any] = json.loads((self.folder / _ESTIMATE_FILE).read_text())
        return found


def estimate_on_worker(out: str, limit: int | None) -> None:
    StagedRun(Path(out)).estimate(limit)


def save_model(
    path: Path,
    config: NgramRun,
    trie: CountTrie,
    text: CountedText,
    held_out: EncodedText | None,
    last: Sequence[int],
    num_threads: int | None,
) -> dict[str, Any]:
    """Estimate and write the model of a text; return figures for the summary.

    `last` is the text's `last_ngram`.
    """
    tokenizer, model, found = text.tokenizer, config.model, dict[str, Any]()
    if held_out is not None:  # from the counts: a model may lack what pruning left out
        found["unseen"] = unseen(trie, held_out.ids, unknown_id=tokenizer.unknown_id)
    trie, made = estimate(
        trie,
        model,
        last=last,
        held_out=None if held_out is None else held_out.ids,
        num_threads=num_threads,
        consume=True,
    )
    header = {"tokenizer": tokenizer.hash, "vocab_size": tokenizer.vocab_size}
    save_estimate(path, trie, made, about(model, made), header, num_threads)
    return found


def _identities(files: Sequence[Path]) -> list[list[Any]]:
    """Name, size and time of change of each file."""
    found = [(str(file), file.stat()) for file in files]
    return [[name, status.st_size, status.st_mtime_ns] for name, status in found]
