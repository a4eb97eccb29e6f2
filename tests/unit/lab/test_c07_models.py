"""C7: its rules on made-up rows."""

from __future__ import annotations

import pytest

from elman.lab.c07_models import EXPERIMENT, LSTM, MODELS, NGRAM, RNN, STACKED, WINDOW, best_loss
from elman.lab.verdicts import answers, joint

ORDER = (NGRAM, WINDOW, RNN, LSTM, STACKED)


def rows(losses: dict[str, float]) -> list[dict]:
    made = []
    for seed in range(5):
        made += [{"seed": seed, "order": 2, "loss": 9.0, "perplexity": 99.0}]
        made += [{"seed": seed, "order": 5, "loss": losses[NGRAM], "perplexity": 9.0}]
        for name in MODELS:
            for update, more in ((50, 1.0), (100, 0.0), (150, 0.1)):
                about = {"seed": seed, "arm": name, "update": update, "perplexity": 9.0}
                made.append(about | {"loss": losses[name] + more})
    return made


def test_it_holds_in_the_lectures_order() -> None:
    falling = {name: 3.0 - 0.1 * number for number, name in enumerate(ORDER)}
    found = answers(EXPERIMENT, rows(falling))
    assert joint(found) == "holds"
    assert [finding.mean for finding in found] == pytest.approx([0.1] * 4)


@pytest.mark.parametrize("number", range(4))
def test_each_step_can_fail(number: int) -> None:
    losses = {name: 3.0 - 0.1 * place for place, name in enumerate(ORDER)}
    for name in ORDER[number + 1 :]:
        losses[name] += 0.2
    found = answers(EXPERIMENT, rows(losses))
    assert [f.verdict == "does not hold here" for f in found] == [i == number for i in range(4)]


def test_the_best_measurement_counts() -> None:
    falling = {name: 3.0 - 0.1 * number for number, name in enumerate(ORDER)}
    assert best_loss(rows(falling), LSTM) == pytest.approx(2.7)


def test_a_figure_can_be_drawn_before_the_end() -> None:
    half = [row for row in rows(dict.fromkeys(ORDER, 2.0)) if row.get("arm") != STACKED]
    assert len(EXPERIMENT.figure(half).panels) == 2
    assert EXPERIMENT.figure([]).panels[0].series == []
