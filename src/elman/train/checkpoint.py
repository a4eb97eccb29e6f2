"""Weights and train states on disk: safetensors with a JSON header, written atomically.

A train state is one safetensors file: its tensors are the weights, the optimiser's state, the
random generators and the carried recurrent state, and its header has the rest as JSON. The file is
renamed into place, so readers and crashes find the old one or the new one, never a mixture.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from elman.base.errors import ElmanError
from elman.base.files import explain, replacing

HEADER = "elman"


def write(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors with a JSON header to `path`, atomically."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        try:
            save_file(on_cpu, temporary, {HEADER: json.dumps(header)})
            # safetensors makes the file private; give it the usual permissions.
            os.umask(umask := os.umask(0))
            temporary.chmod(0o666 & ~umask)
        except SafetensorError as error:
            # safetensors hides the system's error; its number is only in the text.
            full = f"os error {errno.ENOSPC}" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the header of a file."""
    with _opened(path) as file:
        # A copy: a mapped tensor starts at any byte, and kernels may then round differently.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        return tensors, _header(file)


def read_header(path: Path) -> dict[str, Any]:
    with _opened(path) as file:
        return _header(file)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except OSError as error:
        raise explain(error, path) from error
    except (SafetensorError, ValueError) as error:
        raise ElmanError(
            f"{path} is damaged or cut short ({error})",
            "restore the file from a copy, or train the model again",
        ) from error


def _header(file: Any) -> dict[str, Any]:
    header: dict[str, Any] = json.loads((file.metadata() or {}).get(HEADER, "{}"))
    return header


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy `tensors` into the model; all names and shapes must match. `path` is for the error."""
    expected = model.state_dict()
    names = sorted(expected.keys() ^ tensors.keys())
    shapes = [n for n in expected if n in tensors and expected[n].shape != tensors[n].shape]
    if names or shapes:
        what = (
            f"'{names[0]}' is {'missing' if names[0] in expected else 'not part of the model'}"
            if names
            else f"'{shapes[0]}' has shape {tuple(tensors[shapes[0]].shape)}"
            f" where the model has {tuple(expected[shapes[0]].shape)}"
        )
        raise ElmanError(
            f"{path} does not fit the model in config.json: {what}",
            "config.json, tokenizer.json and model.safetensors must come from the same run",
        )
    model.load_state_dict(dict(tensors))


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's state under the names `<parameter index>.<key>`."""
    return {
        f"{index}.{key}": value
        for index, memory in optimiser.state_dict()["state"].items()
        for key, value in memory.items()
        if isinstance(value, Tensor)
    }


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Undo `optimiser_tensors`."""
    memory: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        memory.setdefault(int(index), {})[key] = tensor
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
