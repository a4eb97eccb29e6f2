"""The agreement of the longest match with the next token, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elman.evaluate.pictures import new_figure, save

if TYPE_CHECKING:
    from elman.tasks.infinigram.handle import MatchEvaluation


def agreement_rows(evaluation: MatchEvaluation) -> tuple[Sequence[Any], Sequence[str]]:
    rows = []
    for row in evaluation.agreement:
        alone = row["single_agreement"]
        rows.append(
            (
                _lengths(row),
                row["tokens"],
                f"{row['agreement']:.1%}",
                row["single_tokens"],
                "" if alone is None else f"{alone:.1%}",
            )
        )
    return rows, ("match", "tokens", "agreement", "one continuation", "agreement")


def draw_agreement(evaluations: Mapping[str, MatchEvaluation], path: Path) -> None:
    """Draw agreement by length of match, and the share of tokens with a match of that length."""
    figure = new_figure(6.5, 4.2)
    axes = figure.add_subplot()
    for name, evaluation in evaluations.items():
        rows = evaluation.agreement
        total = max(1, sum(row["tokens"] for row in rows))
        places = range(len(rows))
        axes.plot(places, [row["agreement"] for row in rows], marker="o", label=name)
        alone = [row["single_agreement"] for row in rows]
        axes.plot(places, alone, marker="s", linestyle="--", label=f"{name}, one continuation")
        axes.bar(places, [row["tokens"] / total for row in rows], color="0.85", zorder=0)
        axes.set_xticks(places, [_lengths(row) for row in rows])
    axes.set_xlabel("tokens of the longest match (bars: share of the text)")
    axes.set_ylabel("agreement with the next token")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)
    save(figure, path)


def _lengths(row: Mapping[str, Any]) -> str:
    first, last = row["length"], row["longest"]
    return str(first) if first == last else f"{first}-{last}"
