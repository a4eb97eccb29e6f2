"""Training a captioner and using it: it must see, and a blind one must not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elman.base.documents import read_json
from elman.nn.heads.softmax import Softmax
from elman.tasks.captioning.handle import Captioner

image = pytest.importorskip("PIL.Image")
Elman = Callable[..., Any]

SMALL = (
    *("--set", "model.decoder.hidden_size=24", "--set", "model.decoder.embedding_size=12"),
    *("--set", "model.decoder.dropout_input=0", "--set", "model.decoder.dropout_output=0"),
    *("--set", "model.channels=[6, 8]", "--set", "model.dropout=0"),
    *("--set", "optimiser.learning_rate=0.02", "--set", "schedule.warmup_steps=0"),
    *("--seed", "1", "--steps", "40", "--json"),
)


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of one colour each, and sentences that say which."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "images").mkdir()
    rows = ["image\tlabel\tsentence"]
    for number in range(48):
        colour = ("red", "lime", "blue", "black")[number % 4]
        image.new("RGB", (12, 8), colour).save(folder / "images" / f"{number}.png")
        rows += [f"{number}.png\ttrue\tThere is a {colour} wall.", f"{number}.png\tfalse\tNo wall."]
    (folder / "walls.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder / "walls.tsv"


def _train(elman: Elman, table: Path, name: str, *settings: str) -> Path:
    out = table.parent / name
    arguments = ("--valid", table, "--test", table, "--out", out, *SMALL, *settings)
    result = elman("train", "captioner", table, *arguments).ok()
    assert json.loads(result.out)["test_cider"] >= 0
    return out


@pytest.fixture(scope="session")
def captioner(elman: Elman, table: Path) -> Path:
    return _train(elman, table, "seeing")


def test_it_says_what_it_sees(elman: Elman, captioner: Path, table: Path) -> None:
    files = [str(table.parent / "images" / f"{number}.png") for number in range(3)]
    result = elman("caption", captioner, *files).ok()
    assert result.out.splitlines() == [
        f"{file}\tthere is a {colour} wall."
        for file, colour in zip(files, ("red", "lime", "blue"), strict=True)
    ]
    (found,) = elman("caption", captioner, files[0], "--n-best", 2, "--json").json
    assert len(found["captions"]) == 2
    assert "a captioner over" in elman("info", captioner).out


def test_unknown_words_only_if_asked_for(
    elman: Elman, captioner: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = table.parent / "images" / "1.png"
    opened = Captioner.of_run

    def preferring_unknown(name: str, run: Any) -> Captioner:
        head = next(m for m in run.model.modules() if isinstance(m, Softmax))
        with torch.no_grad():
            head.bias[run.tokenizer.unknown_id] += 20.0
        return opened(name, run)

    monkeypatch.setattr(Captioner, "of_run", preferring_unknown)
    assert "<unk>" not in elman("caption", captioner, picture).ok().out
    assert "<unk>" in elman("caption", captioner, picture, "--unk").ok().out


def test_a_picture_may_come_from_a_pipe(elman: Elman, captioner: Path, table: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, (table.parent / "images" / "1.png").read_bytes())
    os.close(writing)
    assert "there is a lime wall." in elman("caption", captioner, f"/dev/fd/{reading}").ok().out
    os.close(reading)


def test_a_models_configuration_opens_no_folder(
    elman: Elman, captioner: Path, table: Path, tmp_path: Path
) -> None:
    private, foreign = table.parent / "images" / "0.png", tmp_path / "foreign"
    shutil.copytree(captioner, foreign)
    config = read_json(foreign / "config.json")
    config["data"]["pictures"] = "/"
    (foreign / "config.json").write_text(json.dumps(config))
    (tmp_path / "a.tsv").write_text(f"{private}\tThere is a red wall.\n")
    message, hint = elman("evaluate", foreign, tmp_path / "a.tsv").error
    assert "outside of the table's folder" in message
    assert f"--pictures {private.parent}" in hint
    named = ("--pictures", private.parent, "--json")
    assert elman("evaluate", foreign, tmp_path / "a.tsv", *named).json["sentences"] == 1


def test_seeing_beats_blindness(elman: Elman, captioner: Path, table: Path) -> None:
    blind = _train(elman, table, "blind", "--set", "model.blind=true")
    result = elman("evaluate", captioner, table, "--beside", blind, "--json")
    seeing, unseeing = result.json
    assert seeing["nats_per_token"] < unseeing["nats_per_token"] - 0.1
    assert seeing["cider"] > unseeing["cider"] + 1
    # Four colours, equally likely: two bits of the sentence cannot be known.
    per_sentence = unseeing["nats_per_token"] * unseeing["tokens"] / unseeing["sentences"]
    assert per_sentence > 1.38
    assert "blind" in elman("info", blind).out


def test_what_seeing_is_worth(elman: Elman, table: Path) -> None:
    """Each with the better of two settings: one that hardly learns is not taken."""
    settings = SMALL[: SMALL.index("--seed")]
    result = elman(
        *("bench", "pictures", table, "--test", table, "--seeds", 1, "--json", *settings),
        *("--set", "training.steps=40", "--try", "optimiser.learning_rate=1e-6"),
    ).ok()
    rows = {row["name"]: row for row in map(json.loads, result.out.splitlines())}
    assert rows.keys() >= {"surprisal", "CIDEr"}
    for row in rows.values():
        assert row["ratio"] > 1
        assert [row["ours"], row["peer"]] == row["settings"]["seeing"] + row["settings"]["blind"]
        assert row["settings"]["seeing_setting"] == row["settings"]["blind_setting"] == ""


def test_mistakes_have_sentences(
    elman: Elman, captioner: Path, table: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG no more")
    message, hint = elman("caption", captioner, broken).error
    assert message.startswith(f"{broken} is not a readable picture")
    assert hint
    message, _ = elman("caption", captioner, tmp_path / "none.png").error
    assert "none.png" in message
    (tmp_path / "a.tsv").write_text("image\tsentence\nnone.png\tNothing.\n", encoding="utf-8")
    message, _ = elman("evaluate", captioner, tmp_path / "a.tsv").error
    assert "the picture none.png is missing" in message
    message, _ = elman("train", "captioner").error
    assert "needs training data" in message
