"""Text that a conditional model generates, and how good it is against references: BLEU and chrF.

The scores are sacrebleu's (Post, 2018), on raw text: it tokenizes by itself, in a way that its
signature names, so that figures can be compared across systems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from elman.base.errors import ElmanError
from elman.decode.beam import Hypothesis
from elman.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class GeneratedText:
    """One text generated for an input."""

    text: str
    logprob: float
    """Log probability (natural) given the input."""
    score: float
    """The beam's score, with length and coverage penalties."""
    tokens: int
    """Number of tokens."""
    finish_reason: str
    """`stop` if the model ended it, `length` if it was cut off."""

    @classmethod
    def of(cls, hypothesis: Hypothesis, tokenizer: Tokenizer) -> GeneratedText:
        """Decode a hypothesis, without the boundary token at its end."""
        return cls(
            tokenizer.decode([id for id in hypothesis.tokens if id != tokenizer.boundary_id]),
            hypothesis.logprob,
            hypothesis.score,
            len(hypothesis.tokens),
            hypothesis.finish_reason,
        )


@dataclass(frozen=True)
class ReferenceScores:
    """Scores from 0 to 100, and how they were measured."""

    bleu: float
    """Corpus BLEU."""
    chrf: float
    """Corpus chrF."""
    bleu_signature: str
    """What was measured, in sacrebleu's notation."""
    chrf_signature: str
    """The variant of chrF, in the same notation."""


def can_score() -> bool:
    """Whether sacrebleu is installed."""
    return find_spec("sacrebleu") is not None


def score(texts: Sequence[str], references: Sequence[str]) -> ReferenceScores:
    """BLEU and chrF of raw text against one reference each."""
    sacrebleu = _import_sacrebleu()
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    return ReferenceScores(
        bleu=bleu.corpus_score(list(texts), [list(references)]).score,
        chrf=chrf.corpus_score(list(texts), [list(references)]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


def corpus_bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """BLEU alone."""
    bleu = _import_sacrebleu().BLEU()
    found: float = bleu.corpus_score(list(texts), [list(references)]).score
    return found


def _import_sacrebleu() -> Any:
    try:
        import sacrebleu
    except ImportError as error:
        raise ElmanError(
            "BLEU and chrF need the sacrebleu package", "pip install 'elman[translate]'"
        ) from error
    return sacrebleu
