"""card.md: what a model is, how it was trained, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elman.base.config import to_dict
from elman.base.counting import counted
from elman.base.origins import origin
from elman.runs.run_config import SplitData

KINDS = {
    "char": "characters",
    "byte": "bytes",
    "word": "words",
    "pretokenized": "words, as the text separates them",
    "bpe": "sub-words (byte-pair encoding)",
    "sentencepiece": "sub-words (SentencePiece)",
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
"""Formats of the figures of a summary, the most important first."""


def card(
    config: Any,
    what: str,
    num_parameters: int,
    summary: Mapping[str, Any],
    sample: str | None,
    *,
    uses: Sequence[str],
    metrics: Sequence[str] = (),
    valid_is_cut: bool = False,
    test_is_cut: bool = False,
) -> str:
    """Write the text of card.md; `what` the model is, its `uses` and `metrics` come from the task.

    Only the beginning of a "cut" text was evaluated.
    """
    data: SplitData = config.data
    start = getattr(config.training, "start", "")
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
        *([f"| weights at the start | those of {Path(start).name} |"] if start else []),
        f"| recipe | {Path(config.recipe).name} |",
        f"| training | {counted(summary['steps'], 'update')}, {summary['tokens']:,} tokens, "
        f"{summary['seconds']:.0f} seconds |",
        f"| validation | {_figures(summary, '', metrics)}, on "
        f"{_part(summary['valid_tokens'], valid_is_cut)}{held_out} |",
    ]
    if "test_tokens" in summary:
        part = _part(summary["test_tokens"], test_is_cut)
        lines.append(f"| test | {_figures(summary, 'test_', metrics)}, on {part}{test} |")
    if earlier := summary.get("earlier"):
        lines.append(f"| validation text of {earlier['run']} | {told_change(earlier)} |")
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
        "The model learnt from its training text, mistakes and prejudices included.",
    ]
    return "\n".join(lines) + "\n"


def told_weights(found: Mapping[str, Any]) -> str:
    """Format the learnt weights of an embedder's layers, bottom first."""
    shares = ", ".join(f"{share:.3f}" for share in found["weights"])
    return f"{shares}; times {found['scale']:.3f}"


def told_change(earlier: Mapping[str, Any]) -> str:
    """Format what a model forgot of the text of the run that it started from."""
    before, after = earlier["before"], earlier["after"]
    return f"perplexity {before:.2f} before, {after:.2f} after ({after / before - 1:+.1%})"


def _part(num_tokens: int, is_cut: bool) -> str:
    return f"the first {num_tokens:,} tokens of " if is_cut else ""


def _figures(summary: Mapping[str, Any], prefix: str, metrics: Sequence[str]) -> str:
    formats = FIGURES | {
        name: f"{name.replace('_', ' ')} {{:.4g}}" for name in metrics if name not in FIGURES
    }
    return ", ".join(
        text.format(summary[prefix + name])
        for name, text in formats.items()
        if summary.get(prefix + name) is not None
    )


def _names(paths: tuple[str, ...]) -> list[str]:
    return [Path(origin(path)).name for path in paths]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value(inside)}" for key, inside in value.items())
    return str(value)
