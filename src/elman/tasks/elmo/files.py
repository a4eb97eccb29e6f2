"""Read and write ELMo's published files: options.json and lm_weights.hdf5.

The layout comes from the original TensorFlow program. Matrices are (inputs, outputs). An LSTM's
`W_0` has the input rows above the recurrent ones and the gates in the order i, j, f, o (j: our g),
with 1 added to f before its sigmoid. `RNN_0` is the forward direction, `RNN_1` the backward one.
`char_embed` has no row for symbol 0. There is no softmax: such a model predicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn

from elman.base.errors import ElmanError, UsageError
from elman.base.files import explain, read_json, replacing, write_json
from elman.evaluate.vector_files import import_h5py
from elman.nn.cells import LSTMCell
from elman.nn.character_cnn import ELMO, CharacterCNNConfig, HighwayLayer
from elman.nn.layer import RecurrentLayer
from elman.runs.lock import locked
from elman.runs.new_folder import filling
from elman.runs.run_folder import CONFIG_FILE
from elman.tasks.elmo.model import BidirectionalLM, ElmoConfig
from elman.tasks.elmo.settings import ElmoRun
from elman.tasks.opening import OpenedRun, open_run, read_config

if TYPE_CHECKING:
    from elman.tasks.elmo.handle import Elmo

OPTIONS_FILE = "options.json"
WEIGHTS_FILE = "lm_weights.hdf5"
FORGET_BIAS = 1.0
"""TensorFlow's cell adds this to the forget gate; its files do not contain it."""
M = TypeVar("M")

BELONG = f"use the {OPTIONS_FILE} that belongs to the weights"


def is_elmo(path: Path) -> bool:
    """Whether a folder has a model in the published format, and no run."""
    has = [(path / name).is_file() for name in (OPTIONS_FILE, WEIGHTS_FILE, CONFIG_FILE)]
    return has == [True, True, False]


def open_published(path: Path, name: str, device: str) -> Elmo | None:
    """Open a folder of published files; None if `path` is not one."""
    if not is_elmo(path):
        return None
    from elman.tasks.elmo.handle import Elmo

    model = read_elmo(path).to(device)
    config = ElmoRun(recipe="published weights", model=model.config)
    return Elmo(name, OpenedRun(path, config, None, model, {}))


def convert(source: Path, target: Path, to_folder: bool) -> dict[str, Any] | None:
    """Write a run as published files in a folder; None if `source` is not an ELMo run."""
    if not to_folder or not (source / CONFIG_FILE).is_file():
        return None
    if not isinstance(read_config(source), ElmoRun):
        return None
    model: BidirectionalLM = open_run(source).model
    with locked(target), filling(target, WEIGHTS_FILE) as folder:
        write_elmo(folder, model)
    return {
        "out": str(target),
        "layers": model.config.num_layers,
        "size": model.config.output_size,
        "bytes": (target / WEIGHTS_FILE).stat().st_size,
        "notes": ["the output layer is not part of the format"] if model.head else [],
    }


def read_elmo(path: Path) -> BidirectionalLM:
    """Read a model from a folder; it has no output layers and is in evaluation mode."""
    model = _config(path / OPTIONS_FILE).build()
    file = path / WEIGHTS_FILE
    with _opened(file) as arrays:
        tensors = {}
        for name, tensor in _arrays(model).items():
            if name not in arrays:
                raise ElmanError(f"{file} has no {name}", BELONG)
            shapes = tuple(arrays[name].shape), tuple(tensor.shape)
            if shapes[0] != shapes[1]:
                raise ElmanError(
                    f"{name} in {file} has the shape {shapes[0]} instead of {shapes[1]}",
                    BELONG,
                )
            tensors[name] = torch.from_numpy(arrays[name][()])
    _assign(model, tensors)
    return model.eval()


def write_elmo(path: Path, model: BidirectionalLM) -> None:
    """Write a model, without its output layers, into a folder."""
    if model.config.character_cnn.alphabet is not ELMO:
        raise UsageError(
            "the published format needs a model that reads the padding after words",
            "train it with --set model.character_cnn.padding=read",
        )
    h5py = import_h5py()
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / OPTIONS_FILE, _options(model.config))
    with replacing(path / WEIGHTS_FILE) as temporary, h5py.File(temporary, "w") as file:
        for name, tensor in _arrays(model).items():
            file.create_dataset(name, data=tensor.float().cpu().numpy())


def _config(path: Path) -> ElmoConfig:
    """Read an options.json; keys that only training needs are ignored."""
    options = read_json(path)

    def get(group: str, key: str, kind: type | tuple[type, ...], usual: Any = None) -> Any:
        part: Any = options
        for name in group.split("."):
            part = part.get(name) if isinstance(part, dict) else None
        value = part.get(key, usual) if isinstance(part, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise ElmanError(
                f"{path}: {group}.{key} cannot be {value!r}",
                "restore the file from a copy",
            )
        return value

    number = (int, float)
    filters = get("char_cnn", "filters", list)
    widths = [f[0] if isinstance(f, list) and len(f) == 2 else None for f in filters]
    if widths != list(range(1, len(filters) + 1)):
        raise ElmanError(
            f"{path} has filters of the widths {widths} instead of 1, 2, 3 and so on",
            "restore the file from a copy",
        )
    activation = get("char_cnn", "activation", str)
    if activation not in ("relu", "tanh"):
        raise ElmanError(
            f"{path} has an unknown activation '{activation}'", "set it to relu or tanh"
        )
    if (symbols := get("char_cnn", "n_characters", int, ELMO.num_symbols)) != ELMO.num_symbols:
        raise ElmanError(
            f"{path} has {symbols} characters instead of {ELMO.num_symbols}",
            "weights for training have 261, published ones 262: set n_characters to that",
        )
    return ElmoConfig(
        num_layers=get("lstm", "n_layers", int),
        hidden_size=get("lstm", "dim", int),
        projection_size=get("lstm", "projection_dim", int),
        residual=get("lstm", "use_skip_connections", bool, False),
        cell_clip=float(get("lstm", "cell_clip", (*number, type(None))) or 0),
        projection_clip=float(get("lstm", "proj_clip", (*number, type(None))) or 0),
        character_cnn=CharacterCNNConfig(
            character_size=get("char_cnn.embedding", "dim", int),
            filters=tuple(count for _, count in filters),
            activation=activation,
            num_highway=get("char_cnn", "n_highway", int, 0),
            max_characters=get("char_cnn", "max_characters_per_token", int),
            padding="read",
        ),
    )


def _options(config: ElmoConfig) -> dict[str, Any]:
    """The inverse of `_config`."""
    characters = config.character_cnn
    return {
        "lstm": {
            "cell_clip": config.cell_clip or None,
            "use_skip_connections": config.residual,
            "n_layers": config.num_layers,
            "proj_clip": config.projection_clip or None,
            "projection_dim": config.output_size,
            "dim": config.hidden_size,
        },
        "char_cnn": {
            "embedding": {"dim": characters.character_size},
            "filters": [[width, n] for width, n in enumerate(characters.filters, start=1)],
            "n_highway": characters.num_highway,
            "n_characters": ELMO.num_symbols,
            "max_characters_per_token": characters.max_characters,
            "activation": characters.activation,
        },
    }


def _views(model: BidirectionalLM) -> dict[str, Tensor]:
    """The weights outside the recurrent cells, by name, as views in the layout of the file."""
    cnn = model.input
    views = {
        "char_embed": cnn.characters.weight[1:],
        "CNN_proj/W_proj": cnn.projection.weight.t(),
        "CNN_proj/b_proj": cnn.projection.bias,
    }
    for index, convolution in enumerate(_all(cnn.convolutions, nn.Conv1d)):
        views[f"CNN/W_cnn_{index}"] = convolution.weight.permute(2, 1, 0).unsqueeze(0)
        views[f"CNN/b_cnn_{index}"] = cast(Tensor, convolution.bias)
    for index, highway in enumerate(_all(cnn.highways, HighwayLayer)):
        for name, linear in (("carry", highway.gate), ("transform", highway.transform)):
            views[f"CNN_high_{index}/W_{name}"] = linear.weight.t()
            views[f"CNN_high_{index}/b_{name}"] = linear.bias
    return views


def _arrays(model: BidirectionalLM) -> dict[str, Tensor]:
    """The weights of a model, by name and in the layout of the file."""
    arrays = _views(model)
    for name, cell in _cells(model):
        matrices = torch.cat([cell.input_weight, cell.recurrent_weight], dim=1)
        projection = cell.projection_weight
        arrays[f"{name}/W_0"] = _swapped(matrices).t()
        arrays[f"{name}/B"] = _swapped(cell.bias - _forget_bias(cell))
        # The file always has a projection.
        arrays[f"{name}/W_P_0"] = (
            torch.eye(cell.hidden_size) if projection is None else projection.t()
        )
    return {name: array.detach() for name, array in arrays.items()}


@torch.no_grad()
def _assign(model: BidirectionalLM, arrays: dict[str, Tensor]) -> None:
    """The inverse of `_arrays`."""
    for name, view in _views(model).items():
        view.copy_(arrays[name])
    for name, cell in _cells(model):
        inputs, recurrent = torch.split(
            _swapped(arrays[f"{name}/W_0"].t()), [cell.input_size, cell.output_size], dim=1
        )
        cell.input_weight.copy_(inputs)
        cell.recurrent_weight.copy_(recurrent)
        cell.bias.copy_(_swapped(arrays[f"{name}/B"]) + _forget_bias(cell))
        assert cell.projection_weight is not None
        cell.projection_weight.copy_(arrays[f"{name}/W_P_0"].t())


def _cells(model: BidirectionalLM) -> Iterator[tuple[str, LSTMCell]]:
    """The cells of both directions, with their names in the file."""
    for direction, layers in enumerate((model.rightward, model.leftward)):
        for level, layer in enumerate(_all(layers, RecurrentLayer)):
            name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{level}/LSTMCell"
            yield name, cast(LSTMCell, layer.cell)


def _swapped(stacked: Tensor) -> Tensor:
    """Swap the second and third gate: i, f, g, o becomes i, g, f, o, and vice versa."""
    i, second, third, o = stacked.chunk(4)
    return torch.cat([i, third, second, o])


def _forget_bias(cell: LSTMCell) -> Tensor:
    """What TensorFlow's cell adds to the biases, in our order of gates."""
    added = torch.zeros_like(cell.bias)
    added[cell.hidden_size : 2 * cell.hidden_size] = FORGET_BIAS
    return added


def _all(modules: nn.ModuleList, kind: type[M]) -> list[M]:
    return [module for module in modules if isinstance(module, kind)]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open an HDF5 file; damage is reported whenever it is found."""
    h5py = import_h5py()
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError) as error:
        if isinstance(error, (FileNotFoundError, PermissionError)):
            raise explain(error, path) from error
        raise ElmanError(
            f"{path} is damaged, or is not an HDF5 file: {error}", "fetch or copy it again"
        ) from error
