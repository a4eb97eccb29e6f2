"""BLEU and chrF by sacrebleu (Post, 2018), on raw text.

sacrebleu tokenises by itself, in a way that its signature names, so that figures can be compared
across systems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from elman.base.errors import ElmanError


@dataclass(frozen=True)
class TranslationScores:
    """Quality of translations from 0 to 100, and how it was measured."""

    bleu: float
    """Corpus BLEU."""
    chrf: float
    """Corpus chrF."""
    bleu_signature: str
    """The variant of BLEU, in sacrebleu's notation."""
    chrf_signature: str
    """The variant of chrF."""


def can_score() -> bool:
    """Whether sacrebleu is installed."""
    return find_spec("sacrebleu") is not None


def score(translations: Sequence[str], references: Sequence[str]) -> TranslationScores:
    """Measure BLEU and chrF against one reference each."""
    sacrebleu = _sacrebleu()
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    return TranslationScores(
        bleu=bleu.corpus_score(list(translations), [list(references)]).score,
        chrf=chrf.corpus_score(list(translations), [list(references)]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


def corpus_bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    """Measure BLEU alone."""
    found: float = _sacrebleu().BLEU().corpus_score(list(translations), [list(references)]).score
    return found


def _sacrebleu() -> Any:
    try:
        import sacrebleu
    except ImportError as error:
        raise ElmanError(
            "BLEU and chrF need the package sacrebleu, which is not installed",
            "pip install 'elman[translate]'",
        ) from error
    return sacrebleu
