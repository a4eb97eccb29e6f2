"""Weights and train states on disk (`base.tensor_files`), and models built to fit them.

A train state is one file: its tensors are the weights, the optimiser's state, the random generators
and the carried recurrent state, and its header has the rest as JSON. The file is renamed into
place, so readers and crashes find the old one or the new one, never a mixture.

A model is built on the meta device first, where tensors have shapes but no memory, and compared
with the table of the file. A configuration that no file backs is refused before it takes memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from mmap import mmap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from elman.base import tensor_files
from elman.base.counting import counted
from elman.base.errors import ElmanError
from elman.base.tensor_files import Entry, TensorFile, open_tensors
from elman.train import int8_files

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16,
    "I32": torch.int32, "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16,
    "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
SPARE, SPARE_BYTES = 64, 1 << 26
"""Tensors that modules under construction may have beyond those of a file: buffers that are not
saved, and attributes that are set twice."""

_mapped_files: ContextVar[list[Path] | None] = ContextVar("mapped files", default=None)

LARGEST = 1 << 62
"""Limit on the numbers in a train state."""


def write(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors with a JSON header to `path`, atomically."""
    arrays = {
        name: (_NAMES[tensor.dtype], tensor.shape, _parts(tensor))
        for name, tensor in tensors.items()
    }
    tensor_files.write(path, header, arrays)


def _parts(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a tensor, copied from its device when they are wanted."""
    on_cpu = tensor.detach().cpu().contiguous().reshape(-1)
    yield on_cpu.view(torch.uint8).numpy().data


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the header of a file."""
    with open_tensors(path) as file:
        return read_tensors(file), file.header


def read_header(path: Path) -> dict[str, Any]:
    with open_tensors(path) as file:
        return file.header


@contextmanager
def mapped_weights(wanted: bool = True) -> Iterator[list[Path]]:
    """Map weights that are read meanwhile, so that processes share their memory; yield the files.

    While a model is in use, its file must not be written to.
    """
    files: list[Path] = []
    token = _mapped_files.set(files if wanted else None)
    try:
        yield files
    finally:
        _mapped_files.reset(token)


def read_tensors(file: TensorFile) -> dict[str, Tensor]:
    """Read all tensors and verify them.

    In `mapped_weights` they are mapped, all but those that do not begin at a multiple of 64 bytes:
    for them kernels may round differently.
    """
    if unknown := [name for name, entry in file.table.items() if entry.dtype not in DTYPES]:
        raise tensor_files.damaged(
            file.path, f"{unknown[0]!r} has the type {file.table[unknown[0]].dtype}"
        )
    files = _mapped_files.get()
    if files is None or file.blocks:
        buffers = {
            name: torch.empty(entry.num_bytes, dtype=torch.uint8)
            for name, entry in file.table.items()
        }
        file.read_into({name: buffer.numpy() for name, buffer in buffers.items()})
    else:
        files.append(file.path)
        data = file.mapped()
        buffers = {name: _part(data, entry) for name, entry in file.table.items()}
    tensors = {
        name: buffer.view(DTYPES[file.table[name].dtype]).view(file.table[name].shape)
        for name, buffer in buffers.items()
    }
    return int8_files.unpack(tensors) if int8_files.is_packed(file.header) else tensors


def _part(data: mmap, entry: Entry) -> Tensor:
    """A tensor of a mapped file, as bytes."""
    if not entry.num_bytes:
        return torch.empty(0, dtype=torch.uint8)
    part = torch.frombuffer(data, dtype=torch.uint8, count=entry.num_bytes, offset=entry.start)
    return part.clone() if entry.start % tensor_files.ALIGNMENT else part


def table_of(file: TensorFile) -> Mapping[str, Entry]:
    """The table of the tensors that `read_tensors` returns."""
    return (
        int8_files.unpacked_table(file.table) if int8_files.is_packed(file.header) else file.table
    )


def build_to_fit(
    build: Callable[[], nn.Module], path: Path, table: Mapping[str, Entry]
) -> nn.Module:
    """Build a model without initial values, if its tensors are those of a file's table.

    The caller loads all of them. `path` is for the error.
    """
    shapes = {name: entry.shape for name, entry in table.items()}
    try:
        with limited(path, table), torch.device("meta"):
            model = build()
    # Sizes beyond 64 bits; torch raises a TypeError if one alone is.
    except (RuntimeError, OverflowError, MemoryError, TypeError) as error:
        if "meta " not in str(error):  # of a meta tensor, or of the meta device
            raise _misfit(path, "its sizes are impossible") from error
        # The constructor of a model from outside reads values, and tensors on meta have none.
        with limited(path, table):
            model = build()
        _compare(model.state_dict(), shapes, path)
        return model
    _compare(model.state_dict(), shapes, path)
    with _NoInitialValues():  # type: ignore[no-untyped-call]
        return build()


def build_to_resume(build: Callable[[], nn.Module], path: Path) -> nn.Module:
    """Build the model whose weights are in a train state; the caller loads them."""
    with open_tensors(path) as file:
        table = {
            name.removeprefix("model."): entry
            for name, entry in file.table.items()
            if name.startswith("model.")
        }
        return build_to_fit(build, path, table)


@contextmanager
def limited_by(path: Path) -> Iterator[None]:
    """Stop building what belongs to a train state as soon as it has more tensors than the state."""
    with open_tensors(path) as file:
        table = file.table
    with limited(path, table):
        yield


class _NoInitialValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Skip drawing random numbers, which takes most of the time of building a model."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (torch.ops.aten.uniform_.default, torch.ops.aten.normal_.default):
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def limited(path: Path, table: Mapping[str, Entry]) -> Iterator[None]:
    """Stop building modules as soon as they clearly have more tensors than a file has."""
    thread = threading.get_ident()
    left = 2 * len(table) + SPARE
    bytes_left = 2 * sum(entry.num_bytes for entry in table.values()) + SPARE_BYTES

    def count(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal left, bytes_left
        if threading.get_ident() == thread and tensor is not None:
            left -= 1
            bytes_left -= tensor.nbytes
            if left < 0 or bytes_left < 0:
                raise _misfit(path, f"the model has more than its {len(table):,} tensors")

    hooks = (
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def load_weights(
    model: nn.Module, tensors: Mapping[str, Tensor], path: Path, *, assign: bool = False
) -> None:
    """Load `tensors` into the model; all names and shapes must match. `path` is for the error.

    `assign` replaces the model's tensors instead of copying into them.
    """
    expected = model.state_dict()
    _compare(expected, {name: tensor.shape for name, tensor in tensors.items()}, path)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() != expected[name].is_floating_point():
            raise _misfit(path, f"{name!r} has type {tensor.dtype}, not {expected[name].dtype}")
    check_finite(tensors, path)
    same = {name: tensor.to(expected[name].dtype) for name, tensor in tensors.items()}
    model.load_state_dict(same, assign=assign)


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise an error that names the first tensor with infinite numbers or NaN."""
    wrong = [
        (name, tensor)
        for name, tensor in tensors.items()
        # A sum is faster, and finite if all numbers are and none is huge.
        if tensor.is_floating_point()
        and not tensor.sum().isfinite()
        and not tensor.isfinite().all()
    ]
    if wrong:
        name, tensor = wrong[0]
        number = int((~tensor.isfinite()).sum())
        others = f", nor are some of {counted(len(wrong) - 1, 'other tensor')}" if wrong[1:] else ""
        raise ElmanError(
            f"{path}: {number:,} of the {tensor.numel():,} numbers of {name!r} are not finite"
            + others,
            "restore the file from a copy, or train the model again at a lower learning rate",
        )


def _compare(
    expected: Mapping[str, Tensor], found: Mapping[str, tuple[int, ...]], path: Path
) -> None:
    """Compare names and shapes of a model's tensors with those of a file."""
    names = sorted(expected.keys() ^ found.keys())
    shapes = [n for n in expected if n in found and tuple(expected[n].shape) != tuple(found[n])]
    if names:
        missing = "missing" if names[0] in expected else "not part of the model"
        raise _misfit(path, f"'{names[0]}' is {missing}")
    if shapes:
        raise _misfit(
            path,
            f"'{shapes[0]}' has shape {tuple(found[shapes[0]])}"
            f" where the model has {tuple(expected[shapes[0]].shape)}",
        )


def _misfit(path: Path, detail: str) -> ElmanError:
    return ElmanError(
        f"{path} does not fit the model in config.json: {detail}",
        "config.json, tokenizer.json and model.safetensors must come from the same run",
    )


_MEMORY: Mapping[type, tuple[str, ...]] = {
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.Adam: ("step", "exp_avg", "exp_avg_sq"),
}
"""What each optimiser remembers of a parameter that it has updated."""


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's state under the names `<parameter index>.<key>`.

    RMSprop's mean of gradients, which is the last gradient and is not read again, is zeros: they
    can be packed into nothing.
    """
    found = optimiser.state_dict()
    forgetful = {
        index
        for group in found["param_groups"]
        for index in (group["params"] if group.get("betas", (1, 1))[0] == 0 else ())
    }
    return {
        f"{index}.{key}": torch.zeros_like(value)
        if key == "exp_avg" and index in forgetful
        else value
        for index, memory in found["state"].items()
        for key, value in memory.items()
        if isinstance(value, Tensor)
    }


def load_optimiser(
    optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], late: Iterable[Tensor] = ()
) -> None:
    """Undo `optimiser_tensors`. Parameters `late` may not have been updated yet."""
    memory: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        memory.setdefault(int(index), {})[key] = tensor
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    names = next(names for kind, names in _MEMORY.items() if isinstance(optimiser, kind))
    for number, found in memory.items():
        parameter = parameters[number]
        expected = {
            name: torch.zeros(()) if name == "step" else parameter.detach() for name in names
        }
        check_shapes(found, expected)
    skipped = {id(parameter) for parameter in late}
    learning = {
        index
        for index, parameter in enumerate(parameters)
        if parameter.requires_grad and id(parameter) not in skipped
    }
    if isinstance(optimiser, torch.optim.SGD) and memory and learning - memory.keys():
        raise ValueError("the momentum of a parameter is missing")
    optimiser.load_state_dict(
        {"state": memory, "param_groups": optimiser.state_dict()["param_groups"]}
    )


def random_tensors(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's random generators on the CPU and on `device`."""
    tensors = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    return tensors


def load_random(tensors: Mapping[str, Tensor], device: torch.device) -> None:
    """Undo `random_tensors`."""
    torch.set_rng_state(tensors["cpu"].cpu())
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"].cpu(), device)


def check_shapes(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise an error if tensors of a train state have other names or shapes than expected."""
    if names := sorted(found.keys() ^ expected.keys()):
        raise ValueError(f"'{names[0]}' is {'missing' if names[0] in expected else 'unknown'}")
    for name, tensor in found.items():
        if (
            tensor.shape != expected[name].shape
            or tensor.is_floating_point() != expected[name].is_floating_point()
        ):
            raise ValueError(f"'{name}' has another shape or type than in this run")


def check_alike(found: Any, expected: Any, name: str = "its header") -> None:
    """Raise an error if JSON values could not have followed from those of a new run.

    Entries may be missing. Types are the same; None stands for a count that may be missing. Numbers
    are finite, and counts do not fall below 0 or where they begin.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in found.keys() & expected.keys():
            check_alike(found[key], expected[key], f"'{key}'")
    elif isinstance(expected, list) and isinstance(found, list):
        for value in found:
            check_alike(value, 0.0, f"an entry of {name}")
    elif expected is None:
        check_alike(0 if found is None else found, 0, name)
    elif isinstance(expected, float):
        if type(found) not in (float, int) or not abs(found) <= LARGEST:
            raise ValueError(f"{name} is not a number")
    elif type(found) is not type(expected):
        raise ValueError(f"{name} is not of type {type(expected).__name__}")
    elif isinstance(expected, int) and not min(expected, 0) <= found <= LARGEST:
        raise ValueError(f"{name} is out of range")


def flat(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Turn `{"model": {"a": ...}}` into `{"model.a": ...}`."""
    return {f"{group}.{name}": t for group, part in groups.items() for name, t in part.items()}


def grouped(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Undo `flat`: group by what stands before the first dot."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition(".")
        groups.setdefault(group, {})[rest] = tensor
    return groups
