"""What a handle of a language model measures: surprisal, perplexity, test suites."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from elman.base.errors import UsageError, check_text
from elman.base.files import owned_folder
from elman.batches.encoded import EncodedText, encode_files
from elman.evaluate.last_tokens import with_context
from elman.evaluate.perplexity import Evaluation, evaluate
from elman.evaluate.pictures import save
from elman.evaluate.sequences import check_number
from elman.evaluate.shown_surprisal import Surprisals, draw_surprisal
from elman.evaluate.suites import SuiteReport, run_suite
from elman.evaluate.surprisal import surprisals
from elman.tasks.language_model_base import TextModel
from elman.text.converting import Texts, named_texts, utf8_files
from elman.text.records import TEXT
from elman.text.sources import Paths, expand
from elman.tokens.fitting import SAMPLE_LINES, FittedTokenizer, Fitting, first_lines
from elman.tokens.tokenizer import Tokenizer

UNITS = {"2": "bits", "e": "nats", "10": "bans"}
"""What surprisal is measured in, by the base of the logarithm."""


class Measuring(TextModel):
    """Text is read as the training text was written, unless `as_is`."""

    def surprisal(
        self,
        text: str | Iterable[str],
        *,
        unit: str = "token",
        base: str | int = 2,
        boundary: str = "trailing",
        unknown: str = "score",
        carry: bool = False,
        include_end: bool = True,
        context: int | None = None,
        reset: str = "never",
        entropy: bool = False,
        as_is: bool = False,
    ) -> Surprisals:
        """-log P of every token, word or line of `text`, a string or lines.

        Each line is a separate text, unless `carry`. With `context`, each token is predicted from
        at most that many tokens before it. With `reset`, a model that adapts forgets at each
        `blank` line or each `line`. `elman.evaluate.policies` explains the options. Text is read as
        the training text was written (`fitted`), unless `as_is`. The result is a list that a
        notebook shows as shaded text; its `to_pandas()` is a DataFrame.
        """
        policies: dict[str, Any] = {"unit": unit, "base": base, "boundary": boundary}
        policies |= {"unknown": unknown, "carry": carry, "include_end": include_end}
        policies |= {"context": context, "reset": reset, "entropy": entropy}
        tokenizer = self.tokenizer
        if not as_is:
            text = text if isinstance(text, str) or not isinstance(text, Iterable) else [*text]
            tokenizer = self.fitted(text)
        rows = surprisals(self.model, tokenizer, text, **policies)
        return Surprisals(rows, UNITS.get(str(base), f"base {base}"))

    def plot_surprisal(
        self, text: str, *, unit: str = "word", path: Path | str | None = None, **options: Any
    ) -> Any:
        """Draw the surprisal of each token, word or line as bars; return a matplotlib figure.

        With `path`, save it there too (.png, .svg, .pdf). The `options` are those of `surprisal`.
        """
        rows = self.surprisal(text, unit=unit, **options)
        figure = draw_surprisal(rows, rows.unit)
        if path is not None:
            save(figure, Path(path))
        return figure

    def fitted(self, text: str | Sequence[str]) -> Tokenizer:
        """The tokenizer that reads `text`, a string or its first lines, as the training text was
        written; its `reads_as` says how. See `elman.tokens.fitting`."""
        check_text(text, Sequence)
        lines = text.split("\n", SAMPLE_LINES)[:SAMPLE_LINES] if isinstance(text, str) else text
        for line in lines:
            check_text(line)
        return self._fitting.tokenizer_for([line.removesuffix("\n") for line in lines])

    @cached_property
    def _fitting(self) -> Fitting:
        return Fitting(self.tokenizer)

    def logprob(
        self,
        text: str,
        *,
        carry: bool = False,
        include_end: bool = True,
        context: int | None = None,
        as_is: bool = False,
    ) -> float:
        """Natural log P(text); the lines are read as in `surprisal`."""
        return self._logprob(text, carry, include_end, context, as_is)[0]

    def perplexity(
        self,
        text: str,
        *,
        carry: bool = False,
        include_end: bool = True,
        context: int | None = None,
        as_is: bool = False,
    ) -> float:
        """exp of the mean surprisal per token; the lines are read as in `surprisal`."""
        logprob, num_tokens = self._logprob(text, carry, include_end, context, as_is)
        if num_tokens == 0:
            raise UsageError("the text has no tokens to measure", "give a longer text")
        return math.exp(-logprob / num_tokens) if logprob > -700.0 * num_tokens else math.inf

    def evaluate(
        self,
        data: Paths,
        *,
        batch_size: int | None = None,
        context: int | None = None,
        as_is: bool = False,
    ) -> Evaluation:
        """Perplexity and bits per byte of files or built-in corpora, read as in training: as one
        text, or each line by itself.

        With `context`, each token is predicted from at most that many tokens before it. Text is
        read as the training text was written (`fitted`), unless `as_is`.
        """
        if batch_size is not None and self.unit == "line":
            raise UsageError(
                f"{self.name} reads each line by itself, not in lanes", "leave batch_size out"
            )
        text, reads_as = self.encoded(data, as_is=as_is)
        found = evaluate(
            self.model,
            text,
            boundary_id=self.tokenizer.boundary_id,
            unknown_id=self.tokenizer.unknown_id,
            batch_size=batch_size,
            context=context,
            line_end=self.line_end,
        )
        check_number(found.nats_per_token)
        return replace(found, reads_as=reads_as)

    def encoded(self, data: Texts, *, as_is: bool = False) -> tuple[EncodedText, str]:
        """The ids of files, and how their text was changed."""
        files = expand(utf8_files(named_texts(data), column=TEXT))
        tokenizer = self.tokenizer if as_is else self._fitting.tokenizer_for(first_lines(files))
        if not isinstance(tokenizer, FittedTokenizer):
            return encode_files(files, self.tokenizer), ""
        with owned_folder() as folder:
            num_bytes = tokenizer.rewrite(files, rewritten := folder / "text.txt")
            # Figures per byte are about the text as given.
            ids = encode_files(rewritten, self.tokenizer).ids
        return EncodedText(ids, num_bytes=num_bytes), tokenizer.reads_as

    def judge(
        self, files: Paths, *, suite: str, context: int | None = None, as_is: bool = False
    ) -> SuiteReport:
        """Accuracy on the files of a grammar test suite: `blimp` or `syntaxgym`.

        Sentences are read as the training text was written (`fitted`), unless `as_is`.
        """
        model = with_context(self.model, context)
        fit = None if as_is else self.fitted
        return run_suite(suite, model, self.tokenizer, expand(files), fit=fit)

    def _logprob(
        self, text: str, carry: bool, include_end: bool, context: int | None, as_is: bool
    ) -> tuple[float, int]:
        how: dict[str, Any] = {"carry": carry, "include_end": include_end, "context": context}
        rows = self.surprisal(text, unit="line", base="e", as_is=as_is, **how)
        return -math.fsum(row.surprisal or 0.0 for row in rows), sum(row.num_tokens for row in rows)
