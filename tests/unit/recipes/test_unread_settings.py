"""A setting that the other settings make meaningless is refused, not accepted and ignored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from elman.base.config import UnreadSetting, from_dict, nested, to_dict
from elman.base.documents import read_json
from elman.cli.main import run
from elman.models.decoder import DecoderConfig
from elman.models.recurrent import RecurrentLMConfig
from elman.nn.stack import CELLS, READS
from elman.recipes.resolve import resolve
from elman.tasks import TASKS, task_named
from elman.tasks.classification.model import ClassifierConfig
from elman.tasks.opening import open_run, read_config
from elman.tasks.tagging.model import TaggerConfig
from elman.testing import TOY_TEXT
from tiny_models import CHANGED

SPECIMENS = Path(__file__).parents[1] / "runs" / "specimens"

UNREAD: list[tuple[str, dict[str, Any], str]] = [
    ("lm", {"model.gru_form": "reset_before"}, "model.cell to gru"),
    ("lm", {"model.nonlinearity": "relu"}, "model.cell to rnn"),
    ("lm", {"model.cell": "gru", "model.peephole": True}, "model.cell to lstm"),
    ("lm", {"model.cell": "gru", "model.projection_size": 4}, "model.cell to lstm"),
    ("lm", {"model.cell": "rnn", "model.forget_bias": 0.0}, "model.cell to lstm"),
    ("lm", {"model.cell": "sru", "model.layer_norm": True}, "model.cell to lstm or gru or rnn"),
    ("tagger", {"model.gru_form": "reset_before"}, "model.cell to gru"),
    ("classifier", {"model.nonlinearity": "relu"}, "model.cell to rnn"),
    ("translator", {"model.decoder.nonlinearity": "relu"}, "model.decoder.cell to rnn"),
    ("lm", {"model.character_cnn.num_highway": 3}, "model.input to character_cnn"),
    ("lm", {"model.maxent_size": 4096}, "model.maxent_order"),
    ("lm", {"model.dropout_hidden": 0.9}, "model.num_layers to 2 or more"),
    ("tagger", {"model.num_layers": 1, "model.dropout_hidden": 0.9}, "model.num_layers to 2"),
    (
        "translator",
        {"model.decoder.attention": "dot", "model.decoder.attention_size": 9},
        "additive",
    ),
    ("translator", {"model.decoder.attention": "none", "model.decoder.attend": "before"}, "dot"),
    ("tagger", {"model.characters": "none", "model.character_size": 9}, "model.characters to cnn"),
    ("tagger", {"model.constrained": False}, "model.output to crf"),
    ("tagger", {"model.embeddings.scale": 1.0}, "model.embeddings.path"),
    ("tagger", {"model.embeddings.path": "x", "model.embeddings.rate": 0.5}, "fine_tuned to true"),
    ("classifier", {"model.bidirectional": False, "model.merge": "sum"}, "bidirectional to true"),
    ("elmo", {"model.projection_size": 0, "model.projection_clip": 3.0}, "projection_size to 1"),
    ("lm", {"objective.num_candidates": 9}, "objective.regime to minimum_risk"),
    ("lm", {"optimiser.momentum": 0.9}, "optimiser.kind to sgd or asgd"),
    ("lm", {"optimiser.kind": "sgd", "optimiser.beta1": 0.8}, "optimiser.kind to adam or adamw"),
    ("lm", {"schedule.kind": "constant", "schedule.final": 0.1}, "schedule.kind to cosine"),
]


@pytest.mark.parametrize(("task", "settings", "hint"), UNREAD, ids=str)
def test_a_setting_without_a_reader_is_refused(
    task: str, settings: dict[str, Any], hint: str
) -> None:
    config = task_named(task).config_class
    *others, last = settings
    with pytest.raises(UnreadSetting) as error:
        from_dict(config, nested(settings))
    assert f"{last}.".startswith(f"{error.value.path}.")
    assert hint in (error.value.hint or "")
    from_dict(config, nested({name: settings[name] for name in others}))


NETWORKS = (RecurrentLMConfig, TaggerConfig, ClassifierConfig, DecoderConfig)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("cell", [*CELLS, "own_package:OwnCell"])
def test_every_cell_setting_on_every_cell_of_every_network(network: Any, cell: str) -> None:
    assert set(CHANGED) == {name for names in READS.values() for name in names}
    for name, value in CHANGED.items():
        if name in READS.get(cell, ()):
            assert getattr(network(cell=cell, **{name: value}), name) == value
            continue
        with pytest.raises(UnreadSetting) as error:
            network(cell=cell, **{name: value})
        assert error.value.path == f"{network.where}.{name}"
        assert f"{network.where}.cell to " in (error.value.hint or "")


@pytest.mark.parametrize("task", TASKS)
def test_the_defaults_of_every_task_are_read(task: str) -> None:
    task_named(task).config_class()


def test_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "toy.txt"
    text.write_text(TOY_TEXT)
    command = ["train", "lm", str(text), "--out", str(tmp_path / "run"), "--steps", "2"]
    assert run([*command, "--set", "model.gru_form=reset_before"]) == 2
    told = capsys.readouterr().err
    assert "model.gru_form" in told
    assert "model.cell to gru" in told
    assert not (tmp_path / "run").exists()


def test_another_cell_than_the_recipes_drops_the_settings_of_the_recipes(tmp_path: Path) -> None:
    text = tmp_path / "toy.txt"
    text.write_text(TOY_TEXT)
    recipe = "ptb-zaremba-small"  # an lstm with a forget bias of 0
    assert resolve("lm", [str(text)], recipe=recipe).config.model.forget_bias == 0.0
    gru = {"model.cell": "gru"}
    assert resolve("lm", [str(text)], recipe=recipe, settings=gru).config.model.forget_bias == 1.0
    with pytest.raises(UnreadSetting, match="forget_bias"):
        resolve("lm", [str(text)], recipe=recipe, settings=gru | {"model.forget_bias": 0.5})


@pytest.mark.parametrize("format_number", [1, 2])
def test_run_folders_that_recorded_such_a_setting_open(tmp_path: Path, format_number: int) -> None:
    folder = tmp_path / "run"
    shutil.copytree(SPECIMENS / "format-1-lm", folder)
    kept = read_config(folder)
    recorded = to_dict(kept) | {"format": 2}
    if format_number == 1:
        recorded = read_json(folder / "config.json")
    assert recorded["model"]["cell"] == "lstm"
    recorded["model"] |= {"gru_form": "reset_before", "nonlinearity": "relu", "maxent_size": 99}
    (folder / "config.json").write_text(json.dumps(recorded), encoding="utf-8")
    assert read_config(folder) == kept
    open_run(folder)
