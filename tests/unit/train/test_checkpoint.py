"""Files that a crash, a full disk or a careless hand may meet."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from elman.base.errors import ElmanError
from elman.base.tensor_files import open_tensors
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

    def full(tensor: torch.Tensor) -> Iterator[memoryview]:
        yield memoryview(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "_parts", full)
    with pytest.raises(ElmanError, match="the disk is full") as caught:
        checkpoint.write(path, TENSORS, {"step": 4})
    assert caught.value.hint
    assert checkpoint.read_header(path) == HEADER
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize("dtype", checkpoint.DTYPES.values(), ids=str)
def test_every_type_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "x.safetensors"
    numbers = torch.arange(-5, 7).view(3, 4).t().to(dtype)  # not contiguous
    tensors = {"": numbers, "none": numbers[:0], "one": numbers[0, 0], "é": torch.ones(1)}
    checkpoint.write(path, tensors, {})
    with safe_open(path, framework="pt") as file:
        others = {name: file.get_tensor(name) for name in tensors}
    for found in (checkpoint.read(path)[0], others):
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            assert found[name].shape == tensor.shape
            assert torch.equal(found[name], tensor)


def test_numbers_that_are_not_finite_are_named(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors["weight"][1, 1] = math.inf
    tensors["weight"][2, 0] = math.nan
    with pytest.raises(ElmanError, match=r"2 of the 6 numbers of 'weight' are not finite\n"):
        checkpoint.load_weights(model, tensors, tmp_path)
    tensors["bias"][:] = math.nan
    with pytest.raises(ElmanError, match="1 other tensor"):
        checkpoint.load_weights(model, tensors, tmp_path)
    huge = {name: torch.full_like(tensor, 3e38) for name, tensor in tensors.items()}
    checkpoint.load_weights(model, huge, tmp_path)  # its sum is infinite, its numbers are not


def build_linear() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def test_a_model_that_no_file_backs_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    checkpoint.write(path, build_linear().state_dict(), {})
    built = []

    def huge() -> nn.Module:
        built.append(nn.Linear(1 << 20, 1 << 20))
        return built[-1]

    def endless() -> nn.Module:
        while True:
            built.append(nn.Linear(2, 3))

    def impossible() -> nn.Module:
        return nn.Linear(1 << 40, 1 << 40)

    def beyond_64_bits() -> nn.Module:
        return nn.Linear(2, 1 << 64)

    with open_tensors(path) as file:
        for build in (huge, endless, impossible, beyond_64_bits):
            with pytest.raises(ElmanError, match="does not fit"):
                checkpoint.build_to_fit(build, path, file.table)
        assert all(layer.weight.is_meta for layer in built)
        assert len(built) < 100
        model = checkpoint.build_to_fit(build_linear, path, file.table)
        checkpoint.load_weights(model, checkpoint.read_tensors(file), path, assign=True)
    assert not any(tensor.is_meta for tensor in model.state_dict().values())


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    path = tmp_path / "model.safetensors"
    with pytest.raises(ElmanError, match="'bias' is missing"):
        checkpoint.load_weights(model, {"weight": torch.zeros(3, 2)}, path)
    with pytest.raises(ElmanError, match="'extra' is not part of the model"):
        checkpoint.load_weights(model, {**model.state_dict(), "extra": torch.zeros(1)}, path)
    wrong = {**model.state_dict(), "bias": torch.zeros(3, dtype=torch.int32)}
    with pytest.raises(ElmanError, match=r"'bias' has type torch.int32"):
        checkpoint.load_weights(model, wrong, path)
    wrong = {**model.state_dict(), "weight": torch.zeros(3, 4)}
    with pytest.raises(ElmanError, match=r"'weight' has shape \(3, 4\)"):
        checkpoint.load_weights(model, wrong, path)


def test_random_generators_are_restored() -> None:
    device = torch.device("cpu")
    kept = checkpoint.random_tensors(device)
    first = torch.rand(4)
    checkpoint.load_random(kept, device)
    assert torch.equal(torch.rand(4), first)


def test_mapped_weights_are_those_of_the_file(tmp_path: Path) -> None:
    """Tensors that kernels could read differently are copied; the others are in no memory of their
    own."""
    path = tmp_path / "x.safetensors"
    tensors = {
        "odd": torch.randn(7),
        "even": torch.randn(8, 16),
        "empty": torch.empty(0),
        "last": torch.randn(16),
    }
    checkpoint.write(path, tensors, HEADER)
    with checkpoint.mapped_weights() as files, open_tensors(path) as file:
        found = checkpoint.read_tensors(file)
    assert files == [path]
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in found.values())
    found["even"].zero_()  # changes nothing but this process's copy
    found["odd"].zero_()
    assert torch.equal(checkpoint.read(path)[0]["even"], tensors["even"])
    with path.open("r+b") as written:  # the page of "last" was not copied
        written.seek(file.table["last"].start)
        written.write(torch.ones(16).numpy().tobytes())
    with pytest.raises(ElmanError, match="was changed"):
        checkpoint.read(path)
    with (
        checkpoint.mapped_weights(),
        open_tensors(path) as file,
        pytest.raises(ElmanError, match="was changed"),
    ):
        checkpoint.read_tensors(file)


def test_large_mapped_tensors_are_verified(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    checkpoint.write(path, {"a": torch.randn(3 << 19), "b": torch.randn(3)}, {})
    with checkpoint.mapped_weights(), open_tensors(path) as file:
        assert len(checkpoint.read_tensors(file)["a"]) == 3 << 19
