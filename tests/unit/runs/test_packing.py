"""Packed runs: they come back to the rounding, or exactly, and damage is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from elman.base.errors import ElmanError, UsageError
from elman.runs.lock import locked
from elman.runs.packing import pack, unpack
from elman.runs.run_folder import CONFIG_FILE, MODEL_FILE, STATE_FILE
from elman.train import checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with the files of a run, whose best model is the average in its train state."""
    torch.manual_seed(0)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / CONFIG_FILE).write_text(json.dumps({"task": "lm"}))
    (folder / "metrics.jsonl").write_text('{"step": 1}\n' * 100)
    best = {"a": torch.randn(64, 48), "b": torch.randn(7) * 1e-6}
    state = {
        "model.a": torch.randn(64, 48) * 1e4,
        "model.b": torch.randn(7),
        "average.0": best["a"],
        "average.1": best["b"],
        "average.count": torch.tensor(12),
        "optimiser.0.exp_avg_sq": torch.rand(64, 48) * 10.0 ** torch.randint(-20, 0, (64, 48)),
        "random.cpu": torch.randint(256, (40,), dtype=torch.uint8),
        "carried.h": torch.zeros(2, 3),
        "empty": torch.zeros(0, 4),
    }
    checkpoint.write(folder / MODEL_FILE, best, {"step": 5})
    checkpoint.write(folder / STATE_FILE, state, {"format": 1, "progress": {"step": 6}})
    return folder


def tensors(folder: Path) -> dict[str, Tensor]:
    found = {}
    for name in (MODEL_FILE, STATE_FILE):
        found |= {f"{name}:{key}": t for key, t in checkpoint.read(folder / name)[0].items()}
    return found


def test_an_exact_pack_comes_back_as_it_was(run: Path, tmp_path: Path) -> None:
    packed = pack(run, tmp_path / "parts", part_bytes=4000, exact=True)
    assert len(packed.parts) > 3
    assert all(part.stat().st_size <= 4000 for part in packed.parts)
    unpack([tmp_path / "parts"], tmp_path / "back")
    before, after = tensors(run), tensors(tmp_path / "back")
    assert before.keys() == after.keys()
    for name in before:
        assert before[name].dtype == after[name].dtype
        assert torch.equal(before[name], after[name]), name
    for name in (CONFIG_FILE, "metrics.jsonl"):
        assert (run / name).read_bytes() == (tmp_path / "back" / name).read_bytes()
    for name in (MODEL_FILE, STATE_FILE):
        assert checkpoint.read_header(run / name) == checkpoint.read_header(
            tmp_path / "back" / name
        )


def test_a_pack_rounds_to_sixteen_bits(run: Path, tmp_path: Path) -> None:
    packed = pack(run, tmp_path / "parts")
    unpack(packed.parts[::-1], tmp_path / "back")
    before, after = tensors(run), tensors(tmp_path / "back")
    for name, tensor in before.items():
        if tensor.is_floating_point() and tensor.numel():
            wide = 2.0**-8 if name.endswith("exp_avg_sq") else 2.0**-11
            # Below the normal range of float16, the error is a share of the largest number.
            least = 2.0**-29 * float(tensor.abs().max())
            torch.testing.assert_close(after[name], tensor, rtol=wide, atol=least)
        else:
            assert torch.equal(after[name], tensor)
    # The best model, which is the average, is stored once.
    del before[f"{MODEL_FILE}:a"]
    assert packed.num_bytes < 2 * sum(t.numel() for t in before.values()) + 6000


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A folder with the tensors of a run of RMSprop with two averages, near to one another."""
    torch.manual_seed(0)
    folder = tmp_path / "trained"
    folder.mkdir()
    (folder / CONFIG_FILE).write_text(json.dumps({"task": "lm"}))
    average = torch.randn(300, 200) * 0.05

    def near(distance: float) -> Tensor:
        return average + torch.randn(300, 200) * distance

    state = {
        "model.a": near(0.02),
        "model.b": torch.randn(200),
        "short.0": near(0.003),
        "average.0": average,
        "optimiser.0.exp_avg": torch.randn(300, 200) * 1e-4,
        "optimiser.0.exp_avg_sq": (torch.randn(300, 200) * 1e-4) ** 2,
        "optimiser.0.step": torch.tensor(7.0),
    }
    checkpoint.write(folder / MODEL_FILE, {"a": near(0.001), "b": torch.randn(200)}, {"step": 5})
    checkpoint.write(folder / STATE_FILE, state, {"format": 1})
    return folder


def test_a_small_pack_keeps_the_average_best(trained: Path, tmp_path: Path) -> None:
    packed = pack(trained, tmp_path / "parts", small=True)
    unpack(packed.parts, tmp_path / "back")
    before, after = tensors(trained), tensors(tmp_path / "back")
    assert before.keys() == after.keys()

    def error(name: str) -> float:
        return float((after[name] - before[name]).square().mean().sqrt())

    assert error(f"{STATE_FILE}:average.0") < 0.003 * 0.05
    assert error(f"{STATE_FILE}:model.a") < 0.15 * 0.02
    assert error(f"{STATE_FILE}:short.0") < 0.15 * 0.003
    assert error(f"{MODEL_FILE}:a") < 0.005 * 0.05
    assert error(f"{STATE_FILE}:optimiser.0.exp_avg") < 0.15 * 1e-4
    squares = f"{STATE_FILE}:optimiser.0.exp_avg_sq"
    ratios = (after[squares] / before[squares]).log2()
    assert float(ratios.abs().max()) < 0.26
    for name in (f"{STATE_FILE}:model.b", f"{STATE_FILE}:optimiser.0.step", f"{MODEL_FILE}:b"):
        torch.testing.assert_close(after[name], before[name], rtol=2.0**-11, atol=0)
    # 9 bits of the average and about 3 of each of five others, beside 16 of all.
    assert 8 * packed.num_bytes < 27 * average_size(before)
    assert 8 * pack(trained, tmp_path / "usual").num_bytes > 70 * average_size(before)


def average_size(found: dict[str, Tensor]) -> int:
    return found[f"{STATE_FILE}:average.0"].numel()


def test_a_small_pack_of_odd_tensors(run: Path, tmp_path: Path) -> None:
    tensors_of, header = checkpoint.read(run / STATE_FILE)
    odd = {
        "model.zeros": torch.zeros(100, 100),
        "model.nan": torch.full((100, 100), torch.nan),
        "model.outlier": torch.zeros(100, 100).index_put_((torch.tensor(3),), torch.tensor(1e9)),
        "optimiser.9.exp_avg_sq": torch.zeros(100, 100),
    }
    checkpoint.write(run / STATE_FILE, tensors_of | odd, header)
    unpack(pack(run, tmp_path / "parts", small=True).parts, tmp_path / "back")
    found, _ = checkpoint.read(tmp_path / "back" / STATE_FILE)
    for name, tensor in odd.items():
        torch.testing.assert_close(found[name], tensor, equal_nan=True, rtol=1e-4, atol=1e-30)
    with pytest.raises(UsageError, match="both exact and small"):
        pack(run, tmp_path / "others", small=True, exact=True)


def test_versions_that_know_no_small_packs_refuse_them(trained: Path, tmp_path: Path) -> None:
    usual = pack(trained, tmp_path / "usual")
    small = pack(trained, tmp_path / "small", small=True)
    formats = [checkpoint.read(packed.parts[0])[1]["packed"] for packed in (usual, small)]
    assert formats == [1, 2]
    stored, header = checkpoint.read(small.parts[0])
    checkpoint.write(small.parts[0], stored, {**header, "packed": 3})
    with pytest.raises(ElmanError, match="no pack of format 1 or 2"):
        unpack(small.parts, tmp_path / "back")


def test_a_distance_from_another_shape_is_refused(trained: Path, tmp_path: Path) -> None:
    packed = pack(trained, tmp_path / "parts", small=True)
    stored, header = checkpoint.read(packed.parts[0])
    header["tensors"][STATE_FILE]["model.a"]["beside"] = header["tensors"][MODEL_FILE]["b"]
    checkpoint.write(packed.parts[0], stored, header)
    with pytest.raises(ElmanError, match="beside one of another shape"):
        unpack(packed.parts, tmp_path / "back")


def test_what_is_missing_or_changed_is_named(run: Path, tmp_path: Path) -> None:
    packed = pack(run, tmp_path / "parts", part_bytes=4000)
    with pytest.raises(ElmanError, match=r"part 2 of \d+ of run is missing"):
        unpack([packed.parts[0], *packed.parts[2:]], tmp_path / "back")
    with pytest.raises(UsageError, match="has parts already"):
        pack(run, tmp_path / "parts")
    with pytest.raises(UsageError, match="nowhere does not exist"):
        unpack([tmp_path / "nowhere"], tmp_path / "back")
    with pytest.raises(UsageError, match="not a part"):
        unpack([run / CONFIG_FILE], tmp_path / "back")
    data = bytearray(packed.parts[2].read_bytes())
    data[100] ^= 1
    packed.parts[2].write_bytes(data)
    with pytest.raises(ElmanError, match="changed after it was written"):
        unpack(packed.parts, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    with pytest.raises(UsageError, match="already exists"):
        unpack(packed.parts, run)


def test_no_file_is_written_outside(tmp_path: Path) -> None:
    stored = {"file/../evil": torch.zeros(3, dtype=torch.uint8)}
    header = {"packed": 1, "files": ["../evil"], "tensors": {}, "headers": {}}
    checkpoint.write(tmp_path / "x.1-of-1", stored, header)
    with pytest.raises(ElmanError, match=r"a file called '\.\./evil'"):
        unpack([tmp_path / "x.1-of-1"], tmp_path / "back")
    assert not (tmp_path / "evil").exists()


def test_a_folder_without_parts_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{run} has no part of a packed run"):
        unpack([run], tmp_path / "back")


def test_a_run_that_another_process_has_is_copied_without_its_temporary_files(
    run: Path, tmp_path: Path
) -> None:
    unfinished = run / "train" / ".elman-00112233"
    unfinished.mkdir()
    (unfinished / "state.safetensors").write_text("half")
    with locked(run):
        packed = pack(run, tmp_path / "packs", exact=True)
    assert packed.going_on == 6
    unpack(packed.parts, tmp_path / "again")
    assert sorted(path.name for path in (tmp_path / "again").rglob("*") if path.is_file()) == [
        *("config.json", "metrics.jsonl", "model.safetensors", "state.safetensors")
    ]
    (run / STATE_FILE).unlink()
    with locked(run), pytest.raises(UsageError, match="in use"):
        pack(run, tmp_path / "more")
    assert not (tmp_path / "more").exists()
