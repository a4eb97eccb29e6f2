"""card.md: what a model is, how it was trained, how well it does, for whoever finds the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elman.base.config import to_dict
from elman.base.counting import counted
from elman.runs.run_config import SplitData

KINDS = {
    "char": "characters",
    "byte": "bytes",
    "word": "words",
    "pretokenized": "words, as the text separates them",
    "bpe": "sub-words (byte-pair encoding)",
}

FIGURES = {
    "cider": "CIDEr {:.3f}",
    "bleu": "BLEU {:.2f}",
    "chrf": "chrF {:.2f}",
    "f1": "F1 {:.2%}",
    "accuracy": "accuracy {:.2%}",
    "balanced_accuracy": "balanced accuracy {:.2%}",
    "macro_f1": "macro F1 {:.2%}",
    "perplexity": "perplexity {:.2f}",
    "forward_perplexity": "forward {:.2f}",
    "backward_perplexity": "backward {:.2f}",
    "nats_per_token": "{:.4f} nats per token",
    "bits_per_byte": "{:.4f} bits per byte",
}
"""How the figures of a summary are written, the most telling first."""


def card(
    config: Any,
    what: str,
    num_parameters: int,
    summary: Mapping[str, Any],
    sample: str | None,
    *,
    uses: Sequence[str],
    valid_is_cut: bool = False,
    test_is_cut: bool = False,
) -> str:
    """The text of card.md; `what` the model is, and commands that use it, come from the task.

    A cut text is one of which only the beginning was evaluated.
    """
    data: SplitData = config.data
    held_out = ", ".join(_names(data.valid)) or data.held_out
    test = ", ".join(_names(data.test)) or data.held_out_test
    lines = [
        f"# {Path(summary['out']).name}",
        "",
        f"{what}, {num_parameters:,} parameters, trained with Elman.",
        "",
        "| | |",
        "|---|---|",
        f"| text | {', '.join(_names(data.train))} |",
        f"| recipe | {Path(config.recipe).name} |",
        f"| training | {counted(summary['steps'], 'update')}, {summary['tokens']:,} tokens, "
        f"{summary['seconds']:.0f} seconds |",
        f"| validation | {_figures(summary, '')}, on {_part(summary, 'valid_', valid_is_cut)}"
        f"{held_out} |",
    ]
    if "test_tokens" in summary:
        lines.append(
            f"| test | {_figures(summary, 'test_')}, on {_part(summary, 'test_', test_is_cut)}"
            f"{test} |"
        )
    lines += [
        f"| layers of the embeddings, at the {place} | {told_weights(found)} |"
        for place, found in summary.get("layer_weights", {}).items()
    ]
    lines += ["", "## Model", "", "| setting | value |", "|---|---|"]
    lines += [f"| {name} | {_value(value)} |" for name, value in to_dict(config.model).items()]
    if sample:
        lines += ["", "## Sample", "", *(f"    {line}" for line in sample.splitlines())]
    lines += [
        "",
        "## Use",
        "",
        *(f"    {command}" for command in uses),
        "",
        "The model repeats what its text was like, mistakes and prejudices included.",
    ]
    return "\n".join(lines) + "\n"


def told_weights(found: Mapping[str, Any]) -> str:
    """What a task has learnt of an embedder's layers at one place, bottom first."""
    shares = ", ".join(f"{share:.3f}" for share in found["weights"])
    return f"{shares}; times {found['scale']:.3f}"


def _part(summary: Mapping[str, Any], prefix: str, is_cut: bool) -> str:
    return f"the first {summary[prefix + 'tokens']:,} tokens of " if is_cut else ""


def _figures(summary: Mapping[str, Any], prefix: str) -> str:
    return ", ".join(
        text.format(summary[prefix + name])
        for name, text in FIGURES.items()
        if summary.get(prefix + name) is not None
    )


def _names(paths: tuple[str, ...]) -> list[str]:
    return [Path(path).name for path in paths]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value(inside)}" for key, inside in value.items())
    return str(value)
