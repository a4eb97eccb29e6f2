"""Train a language model on a text file, see how good it is, and let it talk.

    python examples/train_and_sample.py [my.txt] [minutes]

Without a file it learns from the built-in corpus python-docs.
"""

from __future__ import annotations

import sys

import elman
from elman.train.report import Report


def main(text: str = "python-docs", minutes: float = 2.0) -> None:
    """Train, measure, sample."""
    lm = elman.train_lm(text, minutes=minutes, seed=1, on_report=tell)

    summary = lm.info()["summary"]
    print(f"\n{lm.name}: validation perplexity {summary['perplexity']:.2f}, ", end="")
    print(f"{summary['bits_per_byte']:.3f} bits per byte")

    print("\nthe most likely beginnings of a text:")
    for token, probability in lm.next("", k=5):
        print(f"  {probability:.3f} {token!r}")

    print("\na sample:")
    for piece in lm.generate("The ", max_tokens=200, temperature=0.8, seed=1, stream=True):
        print(piece, end="", flush=True)
    print()


def tell(report: Report) -> None:
    """One line per validation; a report has many more figures."""
    if report.kind == "valid":
        print(f"step {report.step}: validation perplexity {report.valid_perplexity:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(float, sys.argv[2:3]))
