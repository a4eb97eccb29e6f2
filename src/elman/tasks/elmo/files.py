"""ELMo's published files: options.json and lm_weights.hdf5, read and written.

The layout is that of the TensorFlow program which made them. Matrices are (inputs, outputs); an
LSTM's `W_0` has the input's rows above the recurrent ones and the gates in the order i, j, f, o (j
the new content, which we call g), with 1 added to f before its sigmoid; `RNN_0` is the forward
direction, `RNN_1` the backward one. `char_embed` has no row for symbol 0. The softmax is not among
them: such a model gives vectors and predicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from elman.base.errors import ElmanError, UsageError
from elman.base.files import explain, read_json, replacing, write_json
from elman.evaluate.vector_files import import_h5py
from elman.nn.cells import LSTMCell
from elman.nn.character_cnn import ELMO, CharacterCNNConfig, HighwayLayer
from elman.nn.layer import RecurrentLayer
from elman.tasks.elmo.model import BidirectionalLM, ElmoConfig

OPTIONS_FILE = "options.json"
WEIGHTS_FILE = "lm_weights.hdf5"
FORGET_BIAS = 1.0
"""What TensorFlow's cell adds to the forget gate, and its files therefore leave out."""
M = TypeVar("M")

BELONG = f"take the {OPTIONS_FILE} that belongs to the weights"


def is_elmo(path: Path) -> bool:
    """Whether a folder holds a model in the published format."""
    return (path / OPTIONS_FILE).is_file() and (path / WEIGHTS_FILE).is_file()


def read_elmo(path: Path) -> BidirectionalLM:
    """The model in a folder, without output layers, in evaluation mode on the CPU."""
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
                    f"{name} in {file} has the shape {shapes[0]}, by the options it is {shapes[1]}",
                    BELONG,
                )
            tensors[name] = torch.from_numpy(arrays[name][()])
    _assign(model, tensors)
    return model.eval()


def write_elmo(path: Path, model: BidirectionalLM) -> None:
    """Write the two files into the folder; the output layers have no place in them."""
    if model.config.character_cnn.alphabet is not ELMO:
        raise UsageError(
            "the published format reads the padding behind words, and this model ignores it",
            "train it with --set model.character_cnn.padding=read",
        )
    h5py = import_h5py()
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / OPTIONS_FILE, _options(model.config))
    with replacing(path / WEIGHTS_FILE) as temporary, h5py.File(temporary, "w") as file:
        for name, tensor in _arrays(model).items():
            file.create_dataset(name, data=tensor.float().cpu().numpy())


def _config(path: Path) -> ElmoConfig:
    """The settings that an options.json tells; keys that only training needs are left aside."""
    options = read_json(path)

    def get(group: str, key: str, kind: type | tuple[type, ...], usual: Any = None) -> Any:
        part: Any = options
        for name in group.split("."):
            part = part.get(name) if isinstance(part, dict) else None
        value = part.get(key, usual) if isinstance(part, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise ElmanError(
                f"{path} has {value!r} for {group}.{key}, which is not what ELMo has there",
                "restore the file from a copy",
            )
        return value

    number = (int, float)
    filters = get("char_cnn", "filters", list)
    widths = [f[0] if isinstance(f, list) and len(f) == 2 else None for f in filters]
    if widths != list(range(1, len(filters) + 1)):
        raise ElmanError(
            f"{path} has filters of the widths {widths}, and Elman reads those of widths 1, 2, 3 "
            "and so on",
            "restore the file from a copy",
        )
    activation = get("char_cnn", "activation", str)
    if activation not in ("relu", "tanh"):
        raise ElmanError(
            f"{path} has the activation '{activation}', which ELMo does not know",
            "it is relu or tanh",
        )
    if (symbols := get("char_cnn", "n_characters", int, ELMO.num_symbols)) != ELMO.num_symbols:
        raise ElmanError(
            f"{path} has {symbols} characters, and ELMo has {ELMO.num_symbols}",
            "weights as they were trained have 261; those made for use have 262: set that",
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
    """The opposite of `_config`."""
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


def _arrays(model: BidirectionalLM) -> dict[str, Tensor]:
    """A model's weights by the file's names and in its layout."""
    cnn = model.input
    arrays = {
        "char_embed": cnn.characters.weight[1:],
        "CNN_proj/W_proj": cnn.projection.weight.t(),
        "CNN_proj/b_proj": cnn.projection.bias,
    }
    for index, convolution in enumerate(_all(cnn.convolutions, nn.Conv1d)):
        arrays[f"CNN/W_cnn_{index}"] = convolution.weight.permute(2, 1, 0).unsqueeze(0)
        arrays[f"CNN/b_cnn_{index}"] = cast(Tensor, convolution.bias)
    for index, highway in enumerate(_all(cnn.highways, HighwayLayer)):
        for name, linear in (("carry", highway.gate), ("transform", highway.transform)):
            arrays[f"CNN_high_{index}/W_{name}"] = linear.weight.t()
            arrays[f"CNN_high_{index}/b_{name}"] = linear.bias
    for name, cell in _cells(model):
        matrices = torch.cat([cell.input_weight, cell.recurrent_weight], dim=1)
        projection = cell.projection_weight
        arrays[f"{name}/W_0"] = _swapped(matrices).t()
        arrays[f"{name}/B"] = _swapped(cell.bias - _forget_bias(cell))
        # The format always has a projection.
        arrays[f"{name}/W_P_0"] = (
            torch.eye(cell.hidden_size) if projection is None else projection.t()
        )
    return {name: array.detach() for name, array in arrays.items()}


@torch.no_grad()
def _assign(model: BidirectionalLM, arrays: dict[str, Tensor]) -> None:
    """The opposite of `_arrays`."""
    cnn = model.input
    cnn.characters.weight[1:] = arrays["char_embed"]
    cnn.projection.weight.copy_(arrays["CNN_proj/W_proj"].t())
    cnn.projection.bias.copy_(arrays["CNN_proj/b_proj"])
    for index, convolution in enumerate(_all(cnn.convolutions, nn.Conv1d)):
        convolution.weight.copy_(arrays[f"CNN/W_cnn_{index}"].squeeze(0).permute(2, 1, 0))
        cast(Tensor, convolution.bias).copy_(arrays[f"CNN/b_cnn_{index}"])
    for index, highway in enumerate(_all(cnn.highways, HighwayLayer)):
        for name, linear in (("carry", highway.gate), ("transform", highway.transform)):
            linear.weight.copy_(arrays[f"CNN_high_{index}/W_{name}"].t())
            linear.bias.copy_(arrays[f"CNN_high_{index}/b_{name}"])
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
    """The cells of both directions by their place in the file."""
    for direction, layers in enumerate((model.rightward, model.leftward)):
        for level, layer in enumerate(_all(layers, RecurrentLayer)):
            name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{level}/LSTMCell"
            yield name, cast(LSTMCell, layer.cell)


def _swapped(stacked: Tensor) -> Tensor:
    """Gates in the order i, f, g, o become i, g, f, o, and the other way round."""
    i, second, third, o = stacked.chunk(4)
    return torch.cat([i, third, second, o])


def _forget_bias(cell: LSTMCell) -> Tensor:
    """What TensorFlow adds to the biases, in our order of gates."""
    added = torch.zeros_like(cell.bias)
    added[cell.hidden_size : 2 * cell.hidden_size] = FORGET_BIAS
    return added


def _all(modules: nn.ModuleList, kind: type[M]) -> list[M]:
    return [module for module in modules if isinstance(module, kind)]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The arrays of an HDF5 file; a damaged one is told as such, wherever that shows."""
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
