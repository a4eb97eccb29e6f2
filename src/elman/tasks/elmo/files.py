"""Read and write ELMo's published files: options.json and lm_weights.hdf5.

The layout comes from the original TensorFlow program. Matrices are (inputs, outputs). An LSTM's
`W_0` has the input rows above the recurrent ones and the gates in the order i, j, f, o (j: our g),
with 1 added to f before its sigmoid. `RNN_0` is the forward direction, `RNN_1` the backward one.
`char_embed` has no row for symbol 0. There is no softmax: such a model predicts nothing.

HDF5 can take the numbers of an array from any other file: through links, external storage and
virtual data sets. Someone else's weights could so read private files, so all of these are refused,
and no memory is taken for numbers that the file does not contain.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn

from elman.base.documents import intact, read_json, write_json
from elman.base.errors import ElmanError, UsageError
from elman.base.files import replacing
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

MOST_EXPANDED = 4
"""The most bytes of weights per byte of their file. Weights hardly compress, but a hostile file of
a few kilobytes can claim arrays of any size.
"""
LARGEST = 1 << 30
"""The largest number in the options."""
FLOATS = ("float16", "float32", "float64")

BELONG = f"use the {OPTIONS_FILE} that belongs to the weights"
NOT_ITS_OWN = "do not use it if you do not know who made it; the published files contain no links"


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
    config = _config(path / OPTIONS_FILE)
    file = path / WEIGHTS_FILE
    with _opened(file) as opened:
        # All arrays are checked before memory is taken for the first.
        datasets: dict[str, Any] = {}
        num_bytes, most = 0, MOST_EXPANDED * file.stat().st_size
        for name, shape in _shapes(config):
            datasets[name] = _dataset(opened, name, shape, file)
            num_bytes += datasets[name].nbytes
            if num_bytes > most:
                raise ElmanError(
                    f"{file} is too small for the weights that {OPTIONS_FILE} describes", BELONG
                )
        tensors = {
            name: torch.from_numpy(dataset[()].astype("float32"))
            for name, dataset in datasets.items()
        }
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ElmanError(
                f"{name} in {file} has numbers that are infinite or NaN", "fetch or copy it again"
            )
    model = config.build()
    _assign(model, tensors)
    return model.eval()


def write_elmo(path: Path, model: BidirectionalLM) -> None:
    """Write a model, without its output layers, into a folder."""
    if model.config.cell != "lstm" or model.config.peephole or model.config.layer_norm:
        raise UsageError(
            "the published format is for LSTM cells without peepholes and layer normalisation",
            "train a model with model.cell=lstm",
        )
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

    def refused(what: str, hint: str = "restore the file from a copy") -> ElmanError:
        return ElmanError(f"{path}: {what}", hint)

    def get(group: str, key: str, kind: type | tuple[type, ...], usual: Any = None) -> Any:
        part: Any = options
        for name in group.split("."):
            part = part.get(name) if isinstance(part, dict) else None
        value = part.get(key, usual) if isinstance(part, dict) else None
        fits = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        if not fits or (isinstance(value, int) and value > LARGEST):
            raise refused(f"{group}.{key} cannot be {reprlib.repr(value)}")
        return value

    number = (int, float)
    filters = get("char_cnn", "filters", list)
    pairs: list[Any] = [f if isinstance(f, list) and len(f) == 2 else (0, 0) for f in filters]
    if [width for width, _ in pairs] != list(range(1, len(filters) + 1)):
        widths = reprlib.repr([width for width, _ in pairs])
        raise refused(f"the filters have the widths {widths} instead of 1, 2, 3 and so on")
    if not all(type(count) is int and 0 < count <= LARGEST for _, count in pairs):
        raise refused(f"char_cnn.filters cannot be {reprlib.repr(filters)}")
    activation = get("char_cnn", "activation", str)
    if activation not in ("relu", "tanh"):
        unknown = reprlib.repr(activation)
        raise refused(f"there is no activation {unknown}", "set it to relu or tanh")
    if (symbols := get("char_cnn", "n_characters", int, ELMO.num_symbols)) != ELMO.num_symbols:
        raise refused(
            f"there are {symbols} characters instead of {ELMO.num_symbols}",
            "weights for training have 261, published ones 262: set n_characters to that",
        )
    try:
        return ElmoConfig(
            num_layers=get("lstm", "n_layers", int),
            hidden_size=get("lstm", "dim", int),
            projection_size=get("lstm", "projection_dim", int),
            residual=get("lstm", "use_skip_connections", bool, False),
            cell_clip=float(get("lstm", "cell_clip", (*number, type(None))) or 0),
            projection_clip=float(get("lstm", "proj_clip", (*number, type(None))) or 0),
            character_cnn=CharacterCNNConfig(
                character_size=get("char_cnn.embedding", "dim", int),
                filters=tuple(count for _, count in pairs),
                activation=activation,
                num_highway=get("char_cnn", "n_highway", int, 0),
                max_characters=get("char_cnn", "max_characters_per_token", int),
                padding="read",
            ),
        )
    except UsageError as error:
        raise refused(error.message) from error


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
            yield _cell_name(direction, level), cast(LSTMCell, layer.cell)


def _cell_name(direction: int, level: int) -> str:
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{level}/LSTMCell"


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


def _shapes(config: ElmoConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes of `_arrays`, computed without a model."""
    characters, hidden, width = config.character_cnn, config.hidden_size, config.output_size
    num_filters = sum(characters.filters)
    yield "char_embed", (characters.alphabet.num_symbols - 1, characters.character_size)
    for index, count in enumerate(characters.filters):
        yield f"CNN/W_cnn_{index}", (1, index + 1, characters.character_size, count)
        yield f"CNN/b_cnn_{index}", (count,)
    for index in range(characters.num_highway):
        for name in ("carry", "transform"):
            yield f"CNN_high_{index}/W_{name}", (num_filters, num_filters)
            yield f"CNN_high_{index}/b_{name}", (num_filters,)
    yield "CNN_proj/W_proj", (num_filters, width)
    yield "CNN_proj/b_proj", (width,)
    for direction in range(2):
        for level in range(config.num_layers):
            name = _cell_name(direction, level)
            yield f"{name}/W_0", (2 * width, 4 * hidden)
            yield f"{name}/B", (4 * hidden,)
            yield f"{name}/W_P_0", (hidden, width)


def _dataset(opened: Any, name: str, shape: tuple[int, ...], path: Path) -> Any:
    """Find an array by hard links alone; refuse one of another shape or type, or whose numbers are
    not in this file.
    """
    h5py = import_h5py()
    found = opened
    for part in name.split("/"):
        link = found.get(part, getlink=True) if isinstance(found, h5py.Group) else None
        if link is None:
            raise ElmanError(f"{path} has no {name}", BELONG)
        if not isinstance(link, h5py.HardLink):
            raise ElmanError(f"{name} in {path} is a link to another place", NOT_ITS_OWN)
        found = found[part]
    if not isinstance(found, h5py.Dataset):
        raise ElmanError(f"{name} in {path} is not an array", BELONG)
    if found.external or found.is_virtual:
        raise ElmanError(f"{name} in {path} takes its numbers from another file", NOT_ITS_OWN)
    if found.dtype.newbyteorder("=").name not in FLOATS:
        raise ElmanError(f"{name} in {path} has the type {found.dtype} instead of float32", BELONG)
    if found.shape != shape:
        raise ElmanError(f"{name} in {path} has the shape {found.shape} instead of {shape}", BELONG)
    return found


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open an HDF5 file; damage is reported whenever it is found."""
    h5py = import_h5py()
    with (
        intact(path, "is damaged, or is not an HDF5 file", "fetch or copy it again"),
        h5py.File(path, "r") as file,
    ):
        yield file
