"""Files that a crash, a full disk or a careless hand may meet."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from elman.base.errors import ElmanError
from elman.train import checkpoint

TENSORS = {"a": torch.arange(6).view(2, 3), "b": torch.randn(5, dtype=torch.float64)}
HEADER = {"step": 3, "losses": [0.1, 1 / 3, 1e-300], "nothing": None}


def test_tensors_and_header_come_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "x.safetensors"
    checkpoint.write(path, TENSORS, HEADER)
    tensors, header = checkpoint.read(path)
    assert header == HEADER == checkpoint.read_header(path)
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_a_file_can_be_read_by_whoever_may_read_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    plain = tmp_path / "plain"
    plain.touch()
    checkpoint.write(path, TENSORS, HEADER)
    assert path.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_truncated_file_is_a_sentence(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "x.safetensors"
    checkpoint.write(path, TENSORS, HEADER)
    path.write_bytes(path.read_bytes()[:keep])
    for reader in (checkpoint.read, checkpoint.read_header):
        with pytest.raises(ElmanError, match="damaged or cut short") as caught:
            reader(path)
        assert caught.value.hint


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ElmanError, match="does not exist"):
        checkpoint.read(tmp_path / "x.safetensors")


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    checkpoint.write(path, TENSORS, HEADER)

    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half of")
        raise SafetensorError(f"I/O error: No space left on device (os error {errno.ENOSPC})")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(ElmanError, match="the disk is full") as caught:
        checkpoint.write(path, TENSORS, {"step": 4})
    assert caught.value.hint
    assert checkpoint.read_header(path) == HEADER
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    path = tmp_path / "model.safetensors"
    with pytest.raises(ElmanError, match="'bias' is missing"):
        checkpoint.load_weights(model, {"weight": torch.zeros(3, 2)}, path)
    with pytest.raises(ElmanError, match="'extra' is not part of the model"):
        checkpoint.load_weights(model, {**model.state_dict(), "extra": torch.zeros(1)}, path)
    wrong = {**model.state_dict(), "weight": torch.zeros(3, 4)}
    with pytest.raises(ElmanError, match=r"'weight' has shape \(3, 4\)"):
        checkpoint.load_weights(model, wrong, path)


def test_random_generators_are_restored() -> None:
    device = torch.device("cpu")
    kept = checkpoint.random_tensors(device)
    first = torch.rand(4)
    checkpoint.load_random(kept, device)
    assert torch.equal(torch.rand(4), first)
