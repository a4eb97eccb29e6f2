"""Opening a run folder: damage is noticed, and nothing is built that no file backs."""

from __future__ import annotations

import json
import math
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from elman.base.errors import ElmanError
from elman.cli.main import run
from elman.runs.run_folder import CONFIG_FILE, MODEL_FILE, STATE_FILE
from elman.tasks.opening import open_run
from elman.tasks.verifying import verify_run
from elman.train import checkpoint

SPECIMENS = Path(__file__).parents[1] / "runs" / "specimens"
NETWORKS = sorted(path.parent.name for path in SPECIMENS.glob(f"*/{MODEL_FILE}"))


@pytest.fixture
def folder(request, tmp_path: Path) -> Path:
    """A copy of a specimen, with checksums."""
    copy = tmp_path / "run"
    shutil.copytree(SPECIMENS / request.param, copy)
    for file in copy.rglob("*.safetensors"):
        checkpoint.write(file, *checkpoint.read(file))
    return copy


every_network = pytest.mark.parametrize("folder", NETWORKS, indirect=True)
one_network = pytest.mark.parametrize("folder", ["format-1-lm-resume"], indirect=True)


@every_network
def test_flipped_bits_of_weights_and_train_states_are_noticed(folder: Path) -> None:
    random = Random(0)
    for path in folder.rglob("*.safetensors"):
        sound = path.read_bytes()
        header = 8 * (8 + int.from_bytes(sound[:8], "little"))
        for end in (header, 8 * len(sound)):
            for bit in random.sample(range(end), 25):
                changed = bytearray(sound)
                changed[bit // 8] ^= 1 << bit % 8
                path.write_bytes(changed)
                with pytest.raises(ElmanError, match="damaged"):
                    checkpoint.read(path)


@one_network
def test_tensors_that_changed_places_are_noticed(folder: Path) -> None:
    path = folder / MODEL_FILE
    with checkpoint.open_tensors(path) as file:
        entries = list(file.table.values())
    sound = path.read_bytes()
    one, other = next(
        (a, b) for a in entries for b in entries if a.num_bytes == b.num_bytes and a.start < b.start
    )
    swapped = bytearray(sound)
    swapped[one.start : one.end] = sound[other.start : other.end]
    swapped[other.start : other.end] = sound[one.start : one.end]
    assert swapped != sound
    for content in (bytes(swapped), sound + b"\0", sound[:-1]):
        path.write_bytes(content)
        with pytest.raises(ElmanError, match="damaged"):
            open_run(folder)


def sizes(settings: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The places of a configuration that say how large the model is."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from sizes(value)
        elif name in ("num_layers", "num_highway", "max_characters") or name.endswith("size"):
            yield settings, name


def change_config(folder: Path, changed: dict[str, Any]) -> None:
    (folder / CONFIG_FILE).write_text(json.dumps(changed))


@every_network
def test_a_size_that_no_file_backs_takes_no_memory(folder: Path) -> None:
    open_run(folder)
    config = json.loads((folder / CONFIG_FILE).read_text())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for settings, name in sizes(config["model"]):
        was = settings[name]
        settings[name] = 1_000_000 if name.startswith("num_") else 64_000
        change_config(folder, config)
        try:
            open_run(folder)
        except ElmanError as error:
            refused += "does not fit" in error.message
        settings[name] = was
    assert refused
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes


@one_network
@pytest.mark.parametrize(("name", "value"), [("hidden_size", 64_000), ("num_layers", 1_000_000)])
def test_resuming_builds_nothing_that_no_file_backs(
    folder: Path, name: str, value: int, monkeypatch, capsys
) -> None:
    config = json.loads((folder / CONFIG_FILE).read_text())
    config["model"][name] = value
    change_config(folder, config)
    shutil.move(folder / "small.txt", folder.parent)
    monkeypatch.chdir(folder.parent)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arguments = ["--out", "run", "--resume", "--steps", "20", "--device", "cpu"]
    assert run(["train", "lm", *arguments]) == 1
    assert f"{STATE_FILE} does not fit the model in config.json" in capsys.readouterr().err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


@one_network
@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("command", ["info", "score", "generate", "evaluate", "serve"])
def test_weights_that_are_not_finite_are_named(
    folder: Path, number: float, command: str, capsys, tmp_path: Path
) -> None:
    tensors, header = checkpoint.read(folder / MODEL_FILE)
    for tensor in tensors.values():
        tensor.fill_(number)
    checkpoint.write(folder / MODEL_FILE, tensors, header)
    data = [str(folder / "small.txt")] if command in ("score", "evaluate") else []
    assert run([command, str(folder), *data]) == 1
    assert "are not finite, nor are some of" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["format-1-classifier-vectors"], indirect=True)
def test_word_vectors_that_are_not_finite_are_named(folder: Path) -> None:
    path = folder / "embeddings" / "vectors.safetensors"
    tensors, header = checkpoint.read(path)
    tensors["vectors"][0, 0] = math.nan
    checkpoint.write(path, tensors, header)
    with pytest.raises(ElmanError, match=r"vectors\.safetensors: 1 of the .* are not finite"):
        open_run(folder)


@one_network
@pytest.mark.parametrize("command", ["score", "evaluate", "next", "generate"])
def test_weights_that_are_too_large_are_a_sentence(folder: Path, command: str, capsys) -> None:
    tensors, header = checkpoint.read(folder / MODEL_FILE)
    huge = {name: tensor.sign() * 3e38 for name, tensor in tensors.items()}
    checkpoint.write(folder / MODEL_FILE, huge, header)
    data = {"next": "the", "generate": "the"}.get(command, str(folder / "small.txt"))
    assert run([command, str(folder), data]) == 1
    printed = capsys.readouterr()
    assert "NaN" in printed.err or "not numbers" in printed.err
    assert "nan" not in printed.out


@one_network
def test_verifying_names_every_damaged_file(folder: Path, capsys) -> None:
    assert run(["info", str(folder), "--verify"]) == 0
    states = dict(line.split()[:2][::-1] for line in capsys.readouterr().out.splitlines())
    assert states[MODEL_FILE] == states[STATE_FILE] == "intact"
    assert states[CONFIG_FILE] == "unchecked"
    assert states["tokenizer.json"] == "intact"  # its hash is in the model
    for name in (MODEL_FILE, STATE_FILE, CONFIG_FILE, "metrics.jsonl", "tokenizer.json"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2] + b"\0\n" + content[:9])
    assert run(["info", str(folder), "--verify", "--json"]) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["file"] for each in found if each["state"] == "damaged"} == {
        *(MODEL_FILE, STATE_FILE, CONFIG_FILE, "metrics.jsonl", "tokenizer.json", "."),
    }
    assert all(each["problem"] for each in found if each["state"] == "damaged")


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("format-1-classifier", "tokenizer.json"),  # the hash is of the labels too
        ("format-1-translator", "tokenizer.json"),
        ("format-1-tagger-elmo", "embeddings/tokenizer.json"),
        ("format-1-ngram", "tokenizer.json"),
    ],
    indirect=["folder"],
)
def test_verifying_compares_a_tokenizer_with_its_model(folder: Path, name: str) -> None:
    found = {each.file: each for each in verify_run(folder)}
    assert found[name].state == "intact"
    content = json.loads((folder / name).read_text())
    vocabulary = content["model"]["vocab"]
    first, *_, last = (word for word in vocabulary if not word.startswith("<"))
    vocabulary[first], vocabulary[last] = vocabulary[last], vocabulary[first]
    (folder / name).write_text(json.dumps(content))
    found = {each.file: each for each in verify_run(folder)}
    assert found[name].state == "damaged"
    assert "is not the tokenizer of the model" in found[name].problem


@pytest.mark.parametrize("folder", ["format-1-lm", "format-1-classifier"], indirect=True)
def test_verifying_says_why_files_are_unchecked(folder: Path, capsys) -> None:
    assert run(["info", str(folder), "--verify"]) == 0
    assert "unchecked: it can be read" in capsys.readouterr().err
    (folder / MODEL_FILE).unlink()
    found = {each.file: each for each in verify_run(folder)}
    assert found["tokenizer.json"].state == "unchecked"
    assert found["."].state == "damaged"


@one_network
def test_verifying_trusts_no_word_and_reads_any_page(folder: Path, capsys) -> None:
    (folder / "words.json").write_text('["check"]')
    (folder / "notes.md").write_bytes("caf\u00e9".encode("latin-1"))
    assert run(["info", str(folder), "--verify"]) == 0
    states = dict(line.split()[:2][::-1] for line in capsys.readouterr().out.splitlines())
    assert states["words.json"] == states["notes.md"] == "unchecked"


def test_building_without_initial_values_is_only_for_models_that_are_loaded() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4)
    table = {
        name: checkpoint.Entry("F32", tuple(tensor.shape), 0, 0)
        for name, tensor in layer.state_dict().items()
    }
    checkpoint.build_to_fit(lambda: torch.nn.Linear(4, 4), Path("x"), table)
    assert torch.nn.Linear(4, 4).weight.abs().sum() > 0


def test_a_constructor_may_read_values() -> None:
    class Scaled(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.scale = self.weight.abs().sum().item()

    table = {
        name: checkpoint.Entry("F32", tuple(tensor.shape), 0, 0)
        for name, tensor in torch.nn.Linear(4, 4).state_dict().items()
    }
    assert isinstance(checkpoint.build_to_fit(Scaled, Path("x"), table), Scaled)
