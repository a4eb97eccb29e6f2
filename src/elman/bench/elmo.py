"""Measure contextual word vectors beside the same network of torch's layers.

The peer reads sentences in order, pads a batch to its longest, runs every token through the
character convolution at full width, and runs nn.LSTMs one step at a time (`stepping`) or over whole
sequences. Ours batches sentences of one length and runs each word type through the convolution
once. Both have the same weights, start with cold caches and end with the vectors of all layers on
the CPU; rows have the largest difference between the two.

L layers, B batch, T words, X words with begin and end marks, E width, D = 2 E.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from elman.base.config import from_dict
from elman.base.errors import UsageError
from elman.bench.measuring import in_turns
from elman.bench.rows import Row, more_is_better
from elman.evaluate.contextual import layer_vectors
from elman.nn.cells import LSTMCell
from elman.nn.character_cnn import spelling_table
from elman.nn.kernels.torch_rnn import torch_weights
from elman.nn.layer import RecurrentLayer
from elman.recipes import read
from elman.tasks.elmo.model import MARKS, SYMBOLS, BidirectionalLM, ElmoConfig, ElmoEmbedder

Sentences = Sequence[Sequence[str]]
BATCH_SIZE = 32
"""Sentences in a padded batch of the peer."""


def measure(
    recipes: Sequence[str], sentences: Sentences, *, device: str, repeat: int
) -> Iterator[Row]:
    num_words = sum(len(words) for words in sentences)
    configs = [(name, _config(name)) for name in recipes]  # find mistakes before measuring
    for name, config in configs:
        torch.manual_seed(0)
        model = config.build().eval().to(device)
        padded = Padded(model)
        works: dict[str, Callable[[], list[Tensor]]] = {
            "ours": partial(ours, model, sentences),
            "stepping": partial(padded.vectors, sentences, stepping=True),
            "whole": partial(padded.vectors, sentences, stepping=False),
        }
        found = {peer: work() for peer, work in works.items()}  # warm up
        costs = in_turns(works, repeat)
        speeds = {peer: num_words / cost.seconds for peer, cost in costs.items()}
        for peer, what in (("stepping", "stepping nn.LSTM"), ("whole", "padded nn.LSTM")):
            yield more_is_better(
                f"{name} on {torch.device(device).type} beside {what}",
                speeds["ours"],
                speeds[peer],
                "words/s",
                sentences=len(sentences),
                words=num_words,
                threads=torch.get_num_threads(),
                difference=_largest_difference(found["ours"], found[peer]),
            )


def _config(recipe: str) -> ElmoConfig:
    model = read(recipe).get("model", {})
    if model.get("kind") != "elmo":
        raise UsageError(f"{recipe} is not an ELMo recipe", "`elman recipes` lists them")
    return replace(from_dict(ElmoConfig, model, "model"), cell_clip=0.0, projection_clip=0.0)


def ours(model: BidirectionalLM, sentences: Sentences) -> list[Tensor]:
    """The vectors of all layers, from an embedder with an empty cache."""
    return list(layer_vectors(ElmoEmbedder(model).eval(), sentences, layers="all"))


class Padded:
    """The same model on torch's layers."""

    def __init__(self, model: BidirectionalLM) -> None:
        self.model = model
        with warnings.catch_warnings():  # torch: projections are slow on a CPU
            warnings.simplefilter("ignore")
            self.layers = [
                [_torch_layer(layer) for layer in layers if isinstance(layer, RecurrentLayer)]
                for layers in (model.rightward, model.leftward)
            ]

    @torch.no_grad()
    def vectors(self, sentences: Sentences, *, stepping: bool) -> list[Tensor]:
        found = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for start in range(0, len(sentences), BATCH_SIZE):
                found.extend(self._batch(sentences[start : start + BATCH_SIZE], stepping))
        return found

    def _batch(self, sentences: Sentences, stepping: bool) -> list[Tensor]:
        cnn = self.model.input
        begin, end = MARKS
        longest = max(map(len, sentences)) + len(MARKS)
        rows = [[begin, *words, end] for words in sentences]
        # Padding goes through the convolution like any word.
        spellings = [
            SYMBOLS.get(word, word) for row in rows for word in [*row, *[""] * (longest - len(row))]
        ]
        device = cnn.projection.weight.device
        table = spelling_table(spellings, cnn.config.max_characters, cnn.config.alphabet)
        vectors_BXE = cnn.spelled(table.to(device), cnn.config.max_characters).view(
            len(rows), longest, -1
        )
        lengths = [len(row) for row in rows]
        layers = [torch.cat([vectors_BXE, vectors_BXE], dim=-1)]
        outputs = [vectors_BXE, _reversed(vectors_BXE, lengths)]
        for level in range(self.model.config.num_layers):
            for direction in range(2):
                below = outputs[direction]
                above = _run(self.layers[direction][level], below, stepping)
                residual = level and self.model.config.residual
                outputs[direction] = above + below if residual else above
            layers.append(torch.cat([outputs[0], _reversed(outputs[1], lengths)], dim=-1))
        layers_LBXD = torch.stack(layers).cpu()
        return [layers_LBXD[:, row, 1 : n - 1] for row, n in enumerate(lengths)]


def _torch_layer(layer: RecurrentLayer) -> nn.LSTM:
    cell = layer.cell
    assert isinstance(cell, LSTMCell)
    projection = cell.output_size if cell.projection_weight is not None else 0
    made = nn.LSTM(cell.input_size, cell.hidden_size, proj_size=projection, batch_first=True)
    with torch.no_grad():
        given = torch_weights(cell, cell.recurrent_weight)
        for parameter, weight in zip(made.parameters(), given, strict=True):
            parameter.copy_(weight)
    return made.to(cell.bias.device)


def _run(layer: nn.LSTM, inputs_BXE: Tensor, stepping: bool) -> Tensor:
    if not stepping:
        outputs_BXE: Tensor = layer(inputs_BXE)[0]
        return outputs_BXE
    state, outputs = None, []
    for time in range(inputs_BXE.shape[1]):
        output, state = layer(inputs_BXE[:, time : time + 1], state)
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def _reversed(tensor_BXE: Tensor, lengths: Sequence[int]) -> Tensor:
    """Reverse each row's sentence; padding stays at the end."""
    reversed_BXE = tensor_BXE.clone()
    for row, length in enumerate(lengths):
        reversed_BXE[row, :length] = tensor_BXE[row, :length].flip(0)
    return reversed_BXE


def _largest_difference(ours: Sequence[Tensor], peers: Sequence[Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(ours, peers, strict=True) if a.numel())
