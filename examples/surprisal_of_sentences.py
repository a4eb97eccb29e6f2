"""Which word of a sentence is the surprise, and which of two sentences is the likelier one?

    python examples/surprisal_of_sentences.py runs/mine

The model is a run folder that `elman train lm` made; one over words is the most instructive.
"""

from __future__ import annotations

import math
import sys

import elman

SENTENCES = (
    "the student opened her book.",
    "the student opened her window.",
    "the book opened her student.",
)


def main(run: str) -> None:
    """Surprisal word by word, then the sentences by their probability."""
    lm = elman.load(run)
    for sentence in SENTENCES:
        print(sentence)
        for row in lm.surprisal(sentence, unit="word", base=2, include_end=False):
            bits = math.inf if row.surprisal is None else row.surprisal
            print(f"  {row.text:12} {bits:6.2f} bits {'(unknown)' if row.unknown else ''}")

    print("\nfrom likely to unlikely:")
    for sentence in sorted(SENTENCES, key=lm.logprob, reverse=True):
        perplexity = lm.perplexity(sentence)
        print(f"  {lm.logprob(sentence):8.2f} nats, perplexity {perplexity:8.1f}  {sentence}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/mine")
