"""Weights and train states on disk: safetensors and JSON, each file replaced in one step.

A train state is a single safetensors file whose tensors are the weights, the optimiser's memory,
random generators and the carried recurrent state, and whose header holds the rest as JSON. One
file, renamed into place, cannot be a mixture of two steps; a reader, or a crash, finds the old one
or the new one.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
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
            # safetensors lets only the owner read; a model is as public as any file made here.
            os.umask(umask := os.umask(0))
            temporary.chmod(0o666 & ~umask)
        except SafetensorError as error:
            # safetensors wraps the system's error in its own; the number survives only in the text.
            full = f"os error {errno.ENOSPC}" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a file that `write` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            # A copy: a mapped tensor starts at any byte, and kernels may then round differently.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return tensors, json.loads((file.metadata() or {}).get(HEADER, "{}"))
    except OSError as error:
        raise explain(error, path) from error
    except (SafetensorError, ValueError) as error:
        raise _damaged(path, error) from error


def read_header(path: Path) -> dict[str, Any]:
    """The header alone."""
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, Any] = json.loads((file.metadata() or {}).get(HEADER, "{}"))
            return header
    except OSError as error:
        raise explain(error, path) from error
    except (SafetensorError, ValueError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ElmanError:
    return ElmanError(
        f"{path} is damaged or cut short ({error})",
        "restore the file from a copy, or train the model again",
    )


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy `tensors`, which were read from `path`, into the model; every one must fit."""
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
    """The optimiser's memory under the names `<parameter index>.<key>`."""
    return {
        f"{index}.{key}": value
        for index, memory in optimiser.state_dict()["state"].items()
        for key, value in memory.items()
        if isinstance(value, Tensor)
    }


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The opposite of `optimiser_tensors`."""
    memory: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        memory.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict(
        {"state": memory, "param_groups": optimiser.state_dict()["param_groups"]}
    )


def random_tensors(device: torch.device) -> dict[str, Tensor]:
    """The random generators that training draws from: torch's on the processor and the device."""
    tensors = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    return tensors


def load_random(tensors: Mapping[str, Tensor], device: torch.device) -> None:
    """The opposite of `random_tensors`."""
    torch.set_rng_state(tensors["cpu"].cpu())
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"].cpu(), device)


def grouped(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """`{"model.a": ..., "random.cpu": ...}` by what stands before the first dot."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition(".")
        groups.setdefault(group, {})[rest] = tensor
    return groups
