"""The vectors of words at the input of a model."""

from __future__ import annotations

from elman.tasks.language_model.maxent import MaxEntLMConfig
from elman.tasks.word_tables import of_input


def test_a_model_of_hashed_ngrams_has_no_word_vectors() -> None:
    """`elman train lm --set model.kind=maxent` makes one, in a task whose models have them."""
    assert of_input(MaxEntLMConfig(order=2, size=9).build(5), None) == {}
