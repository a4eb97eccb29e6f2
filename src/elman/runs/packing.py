"""Pack a run into a few small files, to carry it to another machine, and unpack it there.

A run in training takes 4 bytes per weight for the best model, the last weights, their averages and
the optimiser's memory of each. A pack has 2: numbers of 32 bits are rounded to float16, with a
scale per tensor so that its largest number fits, squares of gradients (whose range is wider) to
bfloat16. A tensor that occurs twice, such as the best model that is the present average, is stored
once. Bytes are compressed, the higher and the lower ones of numbers apart. A resumed run then goes
on as it would have, to that rounding; with `exact`, nothing is rounded, and with `small` more is:
large tensors to whole numbers of steps (`rounding.py`).

A run that another process has is packed as of its last checkpoint.

The pack is one file of tensors (`base.tensor_files`, with checksums), cut into parts of a limited
size: `NAME.1-of-3`, `NAME.2-of-3` and so on. Nothing in it is executed.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from elman.base.documents import intact
from elman.base.errors import ElmanError, UsageError
from elman.base.files import explained, make_folder, owned_folder, regular, replacing
from elman.base.tensor_files import open_tensors
from elman.runs.lock import InUse, locked
from elman.runs.new_folder import check_free, filling
from elman.runs.rounding import LARGE, SQUARES, Steps, restored
from elman.runs.run_folder import CONFIG_FILE, MODEL_FILE, STATE_FILE, check_run_folder
from elman.train import checkpoint

FORMAT, SMALL_FORMAT = 1, 2
"""Of packs, and of small ones: a version that does not know steps would take them for weights."""
MEBIBYTE = 1 << 20
TENSOR_FILES = (STATE_FILE, MODEL_FILE)
"""Files whose tensors are rounded; all others are packed as they are."""
COPY_TRIES = 5
"""For a run whose checkpoint is replaced while it is copied."""
AVERAGE = "average."
"""How the names of an average's tensors begin."""
_WHAT_TO_NAME = "name the files that `elman pack` wrote, or their folder"
_PART = re.compile(r"(.+)\.(\d+)-of-(\d+)")


@dataclass(frozen=True)
class Packed:
    """What packing wrote."""

    parts: list[Path]
    num_bytes: int
    num_unpacked: int
    """Bytes of the run folder's files."""
    going_on: int | None
    """The update that was packed, of a run that another process has."""


def pack(
    run: Path,
    out: Path,
    *,
    part_bytes: int = 16 * MEBIBYTE,
    exact: bool = False,
    small: bool = False,
) -> Packed:
    """Pack the run folder `run` into parts in the folder `out`, of at most `part_bytes` each."""
    check_run_folder(run)
    if exact and small:
        raise UsageError("a pack cannot be both exact and small", "drop --exact or --small")
    if part_bytes < 1:
        raise UsageError("a part must have at least one byte", "give --part-mib a larger number")
    if out.exists() and any(_PART.fullmatch(path.name) for path in out.iterdir()):
        raise UsageError(f"{out} has parts already", "choose another folder, or remove them first")
    with explained(out), _at_rest(run, out) as folder:
        contents = _Contents(exact, small)
        num_unpacked = 0
        files = {
            path.relative_to(folder).as_posix(): path
            for path in folder.rglob("*")
            if path.is_file()
        }
        going_on = None
        if folder != run:
            going_on = int(checkpoint.read_header(folder / STATE_FILE)["progress"]["step"])
        # The train state first: its average is what other tensors are stored beside.
        for name in sorted(files, key=lambda name: (name != STATE_FILE, name)):
            num_unpacked += files[name].stat().st_size
            if name in TENSOR_FILES:
                contents.add_tensors(name, files[name])
            else:
                contents.add_file(name, files[name].read_bytes())
        make_folder(out)
        with owned_folder(out) as own:
            whole = own / "whole"
            number = SMALL_FORMAT if small else FORMAT
            checkpoint.write(whole, contents.stored, {"packed": number, **contents.header})
            num_bytes = whole.stat().st_size
            parts = _cut(whole, out / run.name, part_bytes)
    return Packed(parts, num_bytes, num_unpacked, going_on)


@contextmanager
def _at_rest(run: Path, beside: Path) -> Iterator[Path]:
    """Lock the run folder; if another process has it, make a copy between two checkpoints, in the
    folder `beside`."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(run))
        except InUse:
            if not (run / STATE_FILE).exists():  # not trained, or without a checkpoint yet
                raise
            make_folder(beside)
            copy = stack.enter_context(owned_folder(beside)) / "run"
            _copy(run, copy)
            run = copy
        yield run


def _copy(run: Path, copy: Path) -> None:
    for _ in range(COPY_TRIES):
        before = _identity(run / STATE_FILE)
        shutil.rmtree(copy, ignore_errors=True)
        for folder, folders, names in os.walk(run):
            folders[:] = [name for name in folders if not name.startswith(".")]  # temporary ones
            here = copy / Path(folder).relative_to(run)
            here.mkdir(parents=True, exist_ok=True)
            for name in names:
                with suppress(FileNotFoundError):
                    shutil.copyfile(Path(folder, name), here / name)
        if before is not None and _identity(run / STATE_FILE) == before:
            return
    raise ElmanError(
        f"checkpoints of {run} are written faster than they are copied", "wait until it has ended"
    )


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns
    return None


def _cut(whole: Path, named: Path, part_bytes: int) -> list[Path]:
    """Copy a file into parts NAMED.1-of-N and so on, of at most `part_bytes` each."""
    number = max(1, -(-whole.stat().st_size // part_bytes))
    parts = [named.with_name(f"{named.name}.{n}-of-{number}") for n in range(1, number + 1)]
    with whole.open("rb") as file:
        for part in parts:
            with replacing(part) as temporary:
                temporary.write_bytes(file.read(part_bytes))
    return parts


def unpack(parts: Sequence[Path], out: Path) -> None:
    """Put parts together again, as the run folder `out`; a folder stands for the parts in it."""
    files = [
        file
        for path in parts
        for file in (sorted(path.iterdir()) if path.is_dir() else [path])
        if not path.is_dir() or _PART.fullmatch(file.name)
    ]
    if not files:
        named = ", ".join(map(str, parts))
        raise UsageError(f"{named} has no part of a packed run", _WHAT_TO_NAME)
    if (out / CONFIG_FILE).exists() or (out / MODEL_FILE).exists():
        check_free(out)
    with owned_folder() as folder:
        whole = folder / "whole"
        with whole.open("wb") as output:
            for file in _in_order(files):
                with explained(file):
                    output.write(regular(file).read_bytes())
        with open_tensors(whole) as opened:
            stored, header = checkpoint.read_tensors(opened), opened.header
        with intact(files[0]), filling(out, CONFIG_FILE) as new:
            if header.get("packed") not in (FORMAT, SMALL_FORMAT):
                raise ValueError(f"it is no pack of format {FORMAT} or {SMALL_FORMAT}")
            for name in header["files"]:
                path = new / _checked(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(_bytes_of(stored[f"file/{name}"]))
            for name, table in header["tensors"].items():
                tensors = {key: _unpacked(stored, entry) for key, entry in table.items()}
                checkpoint.write(new / _checked(name), tensors, header["headers"][name])


class _Contents:
    """What is stored: compressed bytes by name, and how to make tensors of them."""

    def __init__(self, exact: bool, small: bool) -> None:
        self.exact = exact
        self.steps = Steps() if small else None
        self.stored: dict[str, Tensor] = {}
        self.header: dict[str, Any] = {"files": [], "tensors": {}, "headers": {}}
        self._seen: dict[bytes, dict[str, Any]] = {}

    def add_file(self, name: str, data: bytes) -> None:
        self.header["files"].append(name)
        self.stored[f"file/{name}"] = _bytes(zlib.compress(data))

    def add_tensors(self, name: str, path: Path) -> None:
        tensors, header = checkpoint.read(path)
        self.header["headers"][name] = header
        table = self.header["tensors"][name] = {}
        for key in sorted(tensors, key=lambda key: not key.startswith(AVERAGE)):
            tensor = tensors[key]
            raw = tensor.contiguous().view(-1).view(torch.uint8).numpy()
            mark = hashlib.sha256(f"{tensor.dtype} {[*tensor.shape]}".encode())
            mark.update(raw.data)
            found = self._seen.get(mark.digest())
            if found is None:
                found = self._seen[mark.digest()] = self._add(f"{name}/{key}", tensor)
            table[key] = found

    def _add(self, name: str, tensor: Tensor) -> dict[str, Any]:
        entry: dict[str, Any] = {"from": name}
        entry |= {"dtype": str(tensor.dtype).removeprefix("torch.")}
        entry |= {"shape": [*tensor.shape]}
        is_rounded = not self.exact and tensor.dtype in (torch.float32, torch.float64)
        is_large = tensor.numel() >= LARGE and bool(tensor.isfinite().all())
        if is_rounded and is_large and self.steps is not None:
            tensor = self.steps.round(name, tensor, entry)
        elif is_rounded and tensor.numel() > 1:
            if name.endswith(SQUARES):  # float16 does not have their range
                tensor = tensor.to(torch.bfloat16)
                entry["as"] = "bfloat16"
            else:
                largest = float(tensor.abs().max())
                # Twice the largest number fits into float16: 2^15.
                power = 14 - math.frexp(largest)[1] if math.isfinite(largest) and largest else 0
                tensor = (tensor.double() * 2.0**power).to(torch.float16)
                entry |= {"as": "float16", "power": power}
        planes = tensor.reshape(-1).view(torch.uint8).view(-1, tensor.element_size()).t()
        self.stored[name] = _bytes(_compressed(planes.contiguous().numpy().tobytes()))
        return entry


def _unpacked(stored: Mapping[str, Tensor], entry: Mapping[str, Any]) -> Tensor:
    tensor = _values(stored, entry)
    if (beside := entry.get("beside")) is not None:
        base = _values(stored, beside)
        if base.shape != tensor.shape:
            raise ValueError("a tensor is stored beside one of another shape")
        tensor = tensor + base
    return tensor.to(getattr(torch, entry["dtype"]))


def _values(stored: Mapping[str, Tensor], entry: Mapping[str, Any]) -> Tensor:
    """What is stored of a tensor, without what it is stored beside."""
    kept_as = getattr(torch, entry.get("as", entry["dtype"]))
    size = torch.empty((), dtype=kept_as).element_size()
    data = _bytes_of(stored[entry["from"]], size * math.prod(entry["shape"]))
    planes = torch.frombuffer(bytearray(data) or bytearray(size), dtype=torch.uint8)
    planes = planes[: len(data)].view(size, -1).t().contiguous()
    tensor = planes.view(-1).view(kept_as).view(entry["shape"])
    if "step" in entry or "per_octave" in entry:
        return restored(tensor, entry)
    power = entry.get("power")
    return tensor if power is None else tensor.double() * 2.0 ** -int(power)


def _compressed(data: bytes) -> bytes:
    """Compress by how often bytes occur, and rows of one byte: numbers repeat nothing else, and
    what is taken for a repetition costs up to a fifth."""
    way = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    return way.compress(data) + way.flush()


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _bytes_of(tensor: Tensor, num_bytes: int | None = None) -> bytes:
    """Decompress, to exactly `num_bytes` if given: a small file may claim to be huge."""
    data = tensor.numpy().tobytes()
    if num_bytes is None:
        return zlib.decompress(data)
    found = zlib.decompressobj().decompress(data, num_bytes + 1)
    if len(found) != num_bytes:
        raise ValueError("a tensor has another size than its shape")
    return found


def _checked(name: str) -> str:
    """Refuse the name of a file that would be written outside of the run folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name:
        raise ValueError(f"it has a file called {name!r}")
    return name


def _in_order(files: Sequence[Path]) -> list[Path]:
    """Sort the parts of one pack; raise an error if one is missing."""
    found: dict[tuple[str, int], dict[int, Path]] = {}
    for file in files:
        match = _PART.fullmatch(file.name)
        if not file.exists():
            raise UsageError(f"{file} does not exist", _WHAT_TO_NAME)
        if match is None:
            raise UsageError(f"{file} is not a part", "parts are called NAME.1-of-3")
        found.setdefault((match[1], int(match[3])), {})[int(match[2])] = file
    if len(found) != 1:
        names = ", ".join(sorted({name for name, _ in found}))
        raise UsageError(f"these are parts of several packs: {names}", _WHAT_TO_NAME)
    (((name, count), parts),) = found.items()
    if missing := sorted(set(range(1, count + 1)) - parts.keys()):
        raise ElmanError(f"part {missing[0]} of {count} of {name} is missing", "copy all parts")
    return [parts[n] for n in range(1, count + 1)]
