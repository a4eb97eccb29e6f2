"""Options of commands that say where in the training text something comes from."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from elman.base.errors import UsageError
from elman.terminal.console import table, visible
from elman.terminal.options import option

if TYPE_CHECKING:
    from elman.evaluate.provenance import IndexedText, Source
    from elman.evaluate.surprisal import Row
    from elman.tasks.language_model_handle import Completion
    from elman.tokens.tokenizer import Tokenizer

Why = Annotated[
    bool, option(None, "Show where in the training text each token comes from.", "--why")
]
Index = Annotated[
    str | None,
    option("DIR", "The index of the training text, for a model that has none itself."),
]
EXACT = ("match_share", "match_weight", "seen_length")
COLUMNS = ("match", "match_length", "match_count", *EXACT, "place")
_LONGEST_SHOWN = 40
"""Characters of a match in a table."""


@dataclass(frozen=True)
class Explainer:
    """Finds the sources of tokens: of a model of an index exactly, of others what they share."""

    indexed: IndexedText
    predicted: Callable[[Sequence[int], Sequence[int]], list[Source]] | None = None
    """The sources of predictions; None: of stretches that are shared."""

    def __call__(self, ids: Sequence[int], before: Sequence[int]) -> list[Source]:
        return (self.predicted or self.indexed.shared)(ids, before)

    @property
    def columns(self) -> list[str]:
        return [name for name in COLUMNS if self.predicted is not None or name not in EXACT]

    def of_completion(self, prompt: str, one: Completion, own: Tokenizer) -> list[Source]:
        """The sources of a continuation by a model with the tokenizer `own`."""
        tokenizer = self.indexed.tokenizer
        ids: Sequence[int] = one.ids
        if tokenizer.hash != own.hash:
            ids = tokenizer.encode(one.text).tolist()
        return self(ids, [tokenizer.boundary_id, *tokenizer.encode(prompt).tolist()])

    def with_sources(
        self,
        rows: Iterable[Row],
        lines: Iterable[str],
        tokenizer: Tokenizer,
        *,
        unit: str,
        carry: bool,
    ) -> Iterator[tuple[Row, Source | None]]:
        """Add the source of each row of `score`: of the last token of a word, and of a line that
        with the longest match. `tokenizer` encodes lines to ids of the index."""
        number, texts = 0, iter(lines)
        starts, ends, found = list[int](), list[int](), list[Any]()
        before = [tokenizer.boundary_id]
        for row in rows:
            while number < row.line:
                number += 1
                ids, spans = tokenizer.encode_spans(next(texts).removesuffix("\n") + "\n")
                found = self(ids.tolist(), before)
                starts, ends = [start for start, _ in spans], [end for _, end in spans]
                if carry:
                    before = [*before, *ids.tolist()][-self.indexed.index.longest :]
            # A token may begin with the space before a word.
            first = bisect_right(ends, row.start)
            last = bisect_left(starts, max(row.end, row.start + 1))
            some = found[first:last]
            if unit == "line":
                yield row, max(some, key=lambda one: one.length, default=None)
            else:
                yield row, some[-1] if some else None


def explainer(lm: Any, index: str | None) -> Explainer:
    """The explainer of a model: from the index that is named, or its own."""
    from elman.api import load

    if index is not None:
        found = getattr(load(index, device="cpu"), "indexed", None)
        if found is None:
            raise UsageError(
                f"{index} has no index of a text", "`elman index TEXT --out DIR` makes one"
            )
        return Explainer(found)
    if hasattr(lm, "why"):
        return Explainer(lm.indexed, lm.why)
    for part in lm.parts:
        if hasattr(part, "indexed"):
            return Explainer(part.indexed)
    raise UsageError(
        f"{lm.name} has no index of its training text",
        "make one, `elman index TEXT --out DIR`, and name it with --index DIR",
    )


def cells(source: Source | None, columns: Sequence[str]) -> dict[str, Any]:
    """The columns about a source."""
    if source is None:
        return dict.fromkeys(columns)
    values = {
        "match": source.match,
        "match_length": source.length,
        "match_count": source.count,
        "match_share": source.share,
        "match_weight": source.weight,
        "seen_length": source.seen,
        "place": source.place,
    }
    return {name: values[name] for name in columns}


def sources_table(sources: Sequence[Source], *, exact: bool) -> str:
    """A table of the tokens of a text and where they come from."""
    rows = []
    for one in sources:
        shown = (
            one.match if len(one.match) <= _LONGEST_SHOWN else f"...{one.match[-_LONGEST_SHOWN:]}"
        )
        row: list[object] = [visible(one.token), one.length, one.count]
        if exact:
            share = "" if one.share is None else f"{one.share:.1%}"
            row += [share, f"{one.weight or 0.0:.3f}", one.seen]
        rows.append([*row, visible(shown) if shown else "", one.place])
    after = "after" if exact else "shared"
    names = ["share", "weight", "seen"] if exact else []
    return table(rows, header=["token", "length", "count", *names, after, "place"])
