"""Exercises on n-grams, temperature and perplexity (lecture 004)."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import torch

from elman.decode.processors import temperature
from elman.lab.exercises.answers import alike, calls, model, near, number, vector
from elman.lab.exercises.exercise import Exercise, Wrong
from elman.lab.exercises.texts import school, school_test, source_bits_per_byte
from elman.tasks.language_model_handle import LM

WORD, CONTEXT = "books", "their"
MARGIN = 1.12
"""How many times the bits of the best possible model an answer may need."""


def _trigrams(lines: Iterable[str]) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        words = line.split()
        counts.update(zip(words, words[1:], words[2:], strict=False))
    return counts


def _maximum_likelihood(path: Path) -> str:
    answer = number(path)
    words = [word for line in school() for word in line.split()]
    bigrams = Counter(pair for line in school() for pair in pairwise(line.split()))
    counts = Counter(words)
    both = bigrams[CONTEXT, WORD]
    if near(answer, both / counts[CONTEXT], 0.002):
        return "Counting gives the same."
    if near(answer, both / counts[WORD], 0.002):
        raise Wrong("That divides by the count of the word, not by that of its context.")
    if near(answer, counts[WORD] / len(words), 0.002):
        raise Wrong("That is the share of the word in the text, whatever stands before it.")
    if answer == both:
        raise Wrong("That is a count, not yet a probability.")
    raise Wrong('Divide how often "their books" occurs by how often "their" does.')


def _unseen(path: Path) -> str:
    answer = number(path)
    seen, fresh = _trigrams(school()), _trigrams(school_test())
    new = sum(count for trigram, count in fresh.items() if trigram not in seen)
    right = new / fresh.total()
    types = sum(trigram not in seen for trigram in fresh) / len(fresh)
    if near(answer, right, 0.005):
        return "Counting gives the same."
    if near(answer, 100 * right, 0.005):
        raise Wrong("That is in per cent: write it as a share of 1.")
    if near(answer, types, 0.005):
        raise Wrong("That counts each trigram once: count it as often as it occurs.")
    if answer == new:
        raise Wrong("That is a number of trigrams, not a share.")
    raise Wrong("Take the trigrams inside the lines of school-test.txt, full stop included.")


def _add_delta(path: Path) -> str:
    cases = [(0, 0, 10, 1.0), (3, 8, 10, 0.5), (0, 8, 27, 0.1), (8, 8, 4, 0.01)]
    found = vector(calls(path, "add_delta", cases), len(cases), "The function's results")
    for (count, context, vocab_size, delta), answer in zip(cases, found, strict=True):
        right = (count + delta) / (context + delta * vocab_size)
        if near(answer, right, 1e-6):
            continue
        if not count and not context:
            raise Wrong("After a context that never occurred, every word is equally likely.")
        if near(answer, (count + delta) / (context + delta), 1e-6):
            raise Wrong("The probabilities of all words sum to more than one: every word gets one.")
        raise Wrong("Add delta to the count of each word, and then divide by the sum of all.")
    return "The probabilities of a vocabulary sum to one."


def _temperature(path: Path) -> str:
    distributions = ([0.7, 0.2, 0.1], [0.25, 0.25, 0.5], [1.0, 0.0])
    cases = [(values, heat) for values in distributions for heat in (1.0, 0.5, 2.0)]
    found = calls(path, "with_temperature", cases)
    for (values, heat), returned in zip(cases, found, strict=True):
        warmed = vector(returned, len(values))
        logprobs_BV = torch.tensor([values], dtype=torch.float64).log()
        if alike(warmed, temperature(logprobs_BV, heat).softmax(1)[0].tolist()):
            continue
        if not math.isclose(sum(warmed), 1, rel_tol=1e-4):
            raise Wrong("The result does not sum to one.")
        if alike(warmed, temperature(logprobs_BV, 1 / heat).softmax(1)[0].tolist()):
            raise Wrong("A high temperature should flatten the distribution, not sharpen it.")
        raise Wrong("The probabilities are not to the power 1 / T.")
    return "The distributions are those that Elman samples from."


def _perplexity(path: Path) -> str:
    lm = model(path, LM)
    if not lm.is_normalised:
        raise Wrong("The model's scores do not sum to one, so they have no perplexity.")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fresh.txt"
        file.write_text("".join(f"{line}\n" for line in school_test(seed=77)), encoding="utf-8")
        found = lm.evaluate(file)
    best = source_bits_per_byte()
    if found.oov:
        raise Wrong(f"{found.oov} words of the test text are unknown to the model.")
    if found.impossible:
        raise Wrong(f"{found.impossible} words of the test text have probability 0: smooth.")
    if found.bits_per_byte > MARGIN * best:
        raise Wrong(
            f"The model needs {found.bits_per_byte:.3f} bits per byte, and the best possible one "
            f"{best:.3f}: at most {MARGIN:g} times that is asked."
        )
    return f"{found.bits_per_byte:.3f} bits per byte; the best possible model has {best:.3f}."


EXERCISES = [
    Exercise(
        id="004-1",
        question="What is the maximum-likelihood estimate of p(books given their) in school.txt?",
        answer="a number (0.25 or 1/4)",
        judge=_maximum_likelihood,
    ),
    Exercise(
        id="004-2",
        question="Which share of the trigrams of school-test.txt does not occur in school.txt? "
        "Take the trigrams inside each line, the full stop included, as often as they occur.",
        answer="a number between 0 and 1",
        judge=_unseen,
    ),
    Exercise(
        id="004-3",
        question="Write add_delta(count, context_count, vocab_size, delta): the smoothed "
        "probability of a word that follows a context count times.",
        answer="a Python file with the function add_delta",
        judge=_add_delta,
    ),
    Exercise(
        id="004-4",
        question="Write with_temperature(probabilities, T): the distribution that is sampled from "
        "at temperature T.",
        answer="a Python file with the function with_temperature",
        judge=_temperature,
    ),
    Exercise(
        id="004-5",
        question="Train a model of any kind on school.txt that needs at most 1.12 times the bits "
        "of the best possible model on new text of the same rule.",
        answer="a run folder",
        judge=_perplexity,
    ),
]
