"""Every exercise accepts a right answer, and refuses wrong ones for the reason that it gives."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

import elman
from elman.base.errors import ElmanError, UsageError
from elman.lab.exercises import EXERCISES, check
from elman.lab.exercises.texts import messages, school, school_test, source_bits_per_byte

PAGES = Path(__file__).parents[4] / "docs" / "tour"


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def slope_through_time() -> float:
    h, slope = math.tanh(1.0), 1.0
    for _ in range(9):
        h = math.tanh(0.8 * h)
        slope *= 0.8 * (1 - h * h)
    return slope


def slope_through_two_steps() -> float:
    h_2 = sigmoid(sigmoid(1.0))
    h_3 = sigmoid(h_2 + 1)
    h_4 = sigmoid(h_3)
    return h_4 * (1 - h_4) * (h_3 + h_3 * (1 - h_3) * h_2)


NUMBERS = {
    "000-1": (slope_through_time(), {0.8**9: "slope", 0.5: "large", 0.001: "small"}),
    "000-2": (128 * (64 + 128 + 1), {128 * 194: "one bias", 128 * 192: "biases", 98816: "cell"}),
    "000-5": (4.97, {4.0: "less than half", 6.0: "smaller"}),
    "001-1": (
        -math.log(0.2 * 0.5 * 0.1 * 0.4) / 4,
        {-math.log(0.004): "sum", -math.log2(0.004) / 4: "bits", 0.004**-0.25: "perplexity"},
    ),
    "001-3": (1 / math.sqrt(0.45), {math.sqrt(0.45): "now", 1.2: "vanishes", 2.0: "explodes"}),
    "002-2": (slope_through_two_steps(), {0.0: "constant", 0.1603: "constant"}),
    "002-3": (5 * 32 * 64, {8 * 32 * 64: "one of the windows", 160: "longer"}),
    "003-1": (3.0, {2.8: "median", 3.1: "gradient"}),
    "004-1": (138 / 1128, {1.0: "context", 138: "count", 0.3: "Divide"}),
    "004-2": (4 / 608, {400 / 608: "per cent", 4: "share", 0.5: "inside"}),
}


@pytest.mark.parametrize("id", NUMBERS)
def test_numbers(id: str, tmp_path: Path) -> None:
    right, wrong = NUMBERS[id]
    answer = tmp_path / "answer.txt"
    answer.write_text(f"{right}\n")
    assert check(id, answer).right
    for value, reason in wrong.items():
        answer.write_text(str(value))
        verdict = check(id, answer)
        assert not verdict.right
        assert reason in verdict.why
    answer.write_text("about 3")
    assert "one number" in check(id, answer).why


LSTM = """
from math import exp, tanh
def lstm_step(x, h, c, W, U, b):
    n = len(h)
    z = [sum(w * v for w, v in zip(W[k], x)) + sum(u * v for u, v in zip(U[k], h)) + b[k]
         for k in range(4 * n)]
    s = lambda v: 1 / (1 + exp(-v))
    new = [s(z[n + k]) * c[k] + s(z[k]) * tanh(z[2 * n + k]) for k in range(n)]
    return [s(z[3 * n + k]) * tanh(new[k]) for k in range(n)], new
"""
GRU = """
import numpy as np
def gru_step(x, h, W, U, b):
    x, h, W, U, b = map(np.array, (x, h, W, U, b))
    n = len(h)
    s = lambda v: 1 / (1 + np.exp(-v))
    r, u = s(W[:n] @ x + U[:n] @ h + b[:n]), s(W[n:2*n] @ x + U[n:2*n] @ h + b[n:2*n])
    new = np.tanh(W[2*n:] @ x + U[2*n:] @ (r * h) + b[2*n:])
    return (1 - u) * h + u * new
"""
CLIP = """
def clip(gradient, threshold):
    norm = sum(g * g for g in gradient) ** 0.5
    return [g * threshold / norm for g in gradient] if norm >= threshold else gradient
"""
MIX = """
from math import exp
def elmo_vector(layers, weights, gamma):
    s = [exp(w) for w in weights]
    return [gamma * sum(a * v for a, v in zip(s, column)) / sum(s) for column in zip(*layers)]
"""
ATTENTION = """
from math import exp
def attention(query, states):
    scores = [exp(sum(q * v for q, v in zip(query, state))) for state in states]
    weights = [score / sum(scores) for score in scores]
    return weights, [sum(w * v for w, v in zip(weights, column)) for column in zip(*states)]
"""
SGD = """
def sgd_step(theta, gradient, b, t, lr, weight_decay, momentum, dampening, nesterov, maximize):
    g = [d + weight_decay * p for d, p in zip(gradient, theta)]
    if momentum:
        b = g if t == 1 else [momentum * o + (1 - dampening) * n for o, n in zip(b, g)]
        g = [n + momentum * o for n, o in zip(g, b)] if nesterov else b
    sign = 1 if maximize else -1
    return [p + sign * lr * d for p, d in zip(theta, g)], b
"""
PENALISE = """
def penalise(logits, counts, frequency, presence):
    return [l - c * frequency - (c > 0) * presence for l, c in zip(logits, counts)]
"""
ADD_DELTA = """
def add_delta(count, context_count, vocab_size, delta):
    return (count + delta) / (context_count + delta * vocab_size)
"""
TEMPERATURE = """
def with_temperature(probabilities, T):
    powers = [p ** (1 / T) for p in probabilities]
    return [p / sum(powers) for p in powers]
"""
FUNCTIONS = {
    "000-3": (LSTM, {("s(z[3 * n + k]) * tanh", "tanh"): "output gate", ("], new", "]"): "two"}),
    "000-4": (GRU, {("@ (r * h)", "@ h * r"): "cuDNN", ("(1 - u) * h + u", "u * h + (1-u)"): "h"}),
    "001-2": (CLIP, {("norm >= threshold", "norm"): "below", ("/ norm", ""): "direction"}),
    "001-5": (MIX, {(" / sum(s)", ""): "weighted sum", ("gamma *", ""): "gamma"}),
    "002-4": (ATTENTION, {("exp(sum", "(sum"): "weights", ("/ sum(scores)", ""): "sum to"}),
    "003-2": (SGD, {("1 - dampening", "1"): "dampening", ("1 if maximize else", ""): "maximise"}),
    "003-4": (PENALISE, {("(c > 0)", "c"): "however often", ("- c", "- 1"): "stay as they are"}),
    "004-3": (
        ADD_DELTA,
        {("vocab_size)", "1)"): "equally", ("(count + delta)", "count"): "context"},
    ),
    "004-4": (TEMPERATURE, {("(1 / T)", "T"): "flatten", (" / sum(powers)", ""): "sum to one"}),
}


@pytest.mark.parametrize("id", FUNCTIONS)
def test_functions(id: str, tmp_path: Path) -> None:
    right, wrong = FUNCTIONS[id]
    answer = tmp_path / "answer.py"
    answer.write_text(right)
    verdict = check(id, answer)
    assert verdict.right, verdict.why
    for (part, instead), reason in wrong.items():
        answer.write_text(right.replace(part, instead))
        verdict = check(id, answer)
        assert not verdict.right
        assert reason in verdict.why
    answer.write_text("x = 1\n")
    assert "there is no function" in check(id, answer).why


BACKWARDS = "students\t<eos>\nopened\tstudents\n"
TABLES = {
    "002-1": (
        "<eos>\tstudents\nstudents\topened\nopened\ttheir\ntheir\tbooks\nbooks\t.\n.\t<eos>\n",
        {
            "students\topened\nopened\ttheir\ntheir\tbooks\nbooks\t.\n.\t<eos>\n": "first word",
            "<eos>\tstudents\nstudents\topened\nopened\ttheir\ntheir\tbooks\nbooks\t.\n": "ends",
            "students\tstudents\nopened\topened\ntheir\ttheir\nbooks\tbooks\n.\t.\n": "copy",
            "students opened\n": "columns",
        },
    ),
    "003-3": (
        "books\t0.475\nlaptops\t0.3375\nminds\t0.1875\n",
        {
            "books\t0.38\nlaptops\t0.27\nminds\t0.15\n": "sum to one",
            "books\t0.585\nlaptops\t0.415\n": "fewer",
            "books\t0.5\nlaptops\t0.3\nminds\t0.2\n": "not those",
            "books\tmany\n": "numbers",
        },
    ),
}


@pytest.mark.parametrize("id", TABLES)
def test_tables(id: str, tmp_path: Path) -> None:
    right, wrong = TABLES[id]
    answer = tmp_path / "answer.tsv"
    answer.write_text(right)
    assert check(id, answer).right
    for rows, reason in wrong.items():
        answer.write_text(rows)
        verdict = check(id, answer)
        assert not verdict.right
        assert reason in verdict.why


def test_a_network_for_regression(tmp_path: Path) -> None:
    answer = tmp_path / "network.json"
    W, b = torch.full((12,), 1.5), torch.linspace(-4, 4, 12)
    x = torch.linspace(-3, 3, 60)[:, None]
    hidden = torch.cat([torch.tanh(x * W + b), torch.ones(60, 1)], dim=1)
    found = torch.linalg.lstsq(hidden.double(), torch.sin(x).double()).solution[:, 0]
    network = {"activation": "tanh", "W": W.tolist(), "b": b.tolist()}
    network |= {"U": found[:-1].tolist(), "c": float(found[-1])}
    answer.write_text(json.dumps(network))
    verdict = check("003-5", answer)
    assert verdict.right, verdict.why
    for change, reason in (
        ({"activation": "relu"}, "error"),
        ({"activation": "linear"}, "activation"),
        ({"W": [1.0] * 17}, "16"),
        ({"b": [1.0]}, "12 numbers"),
        ({"U": "all"}, "list of numbers"),
    ):
        answer.write_text(json.dumps(network | change))
        assert reason in check("003-5", answer).why
    answer.write_text("{")
    assert "JSON" in check("003-5", answer).why


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models to hand in: counted from the text, from too few words of context, from its test."""
    folder = tmp_path_factory.mktemp("runs")
    texts = {"seen": school(), "told": school_test() * 6}
    for name, lines in texts.items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    tokens = {"tokenizer.kind": "pretokenized"}
    for name, text, order, smoothing in (
        ("good", "seen", 4, "kneser-ney"),
        ("short", "seen", 1, "kneser-ney"),
        ("told", "told", 4, "maximum-likelihood"),
        ("unsmoothed", "seen", 3, "maximum-likelihood"),
    ):
        elman.train_ngram(
            str(folder / f"{text}.txt"),
            order=order,
            smoothing=smoothing,
            settings=tokens,
            out=str(folder / name),
        )
    return folder


def test_models_of_the_school(runs: Path) -> None:
    assert check("004-5", runs / "good").right
    assert "best possible" in check("004-5", runs / "short").why
    assert "probability 0" in check("004-5", runs / "unsmoothed").why
    # A model that was told what "scholars opened their" is followed by; others have to infer it.
    assert check("001-4", runs / "told").right
    assert "90 %" in check("001-4", runs / "good").why.replace("90%", "90 %")
    assert not check("001-4", runs / "short").right


def test_models_that_label(runs: Path, tmp_path: Path) -> None:
    table = tmp_path / "spam.tsv"
    table.write_text("".join(f"{label}\t{text}\n" for label, text in messages(200, 1)))
    settings = {"optimiser.learning_rate": 0.02, "model.hidden_size": 24}
    for name, steps in (("trained", 150), ("not", 1)):
        given = settings | {"training.validate_every": steps}
        out = str(tmp_path / name)
        elman.train_classifier(str(table), steps=steps, settings=given, seed=1, out=out)
    verdict = check("002-5", tmp_path / "trained")
    assert verdict.right, verdict.why
    assert "are right, not" in check("002-5", tmp_path / "not").why
    assert "another kind" in check("002-5", runs / "good").why


def test_each_exercise_is_tested_here_and_stands_on_its_page() -> None:
    models = {"001-4", "002-5", "004-5", "003-5"}
    assert set(EXERCISES) == {*NUMBERS, *FUNCTIONS, *TABLES, *models}
    for id, exercise in EXERCISES.items():
        page = (PAGES / f"{id[:3]}.md").read_text(encoding="utf-8")
        row = re.search(rf"^\| {id} \| (.*) \| (.*) \|$", page, re.M)
        assert row is not None, id
        assert row[1] == exercise.question
        assert row[2] == exercise.answer


def test_a_question_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no exercise '000-9'"):
        check("000-9", tmp_path / "answer.txt")
    with pytest.raises(ElmanError, match="No such file"):
        check("000-1", tmp_path / "answer.txt")
    with pytest.raises(ElmanError, match="there is no model"):
        check("004-5", tmp_path / "model")


def test_the_best_possible_model() -> None:
    """The rule's entropy: 192 sentences, all equally likely."""
    num_bytes = len("".join(f"{line}\n" for line in school_test()))
    assert source_bits_per_byte() == pytest.approx(192 * math.log2(192) / num_bytes)
