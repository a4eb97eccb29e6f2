"""The speed of word vectors in context, beside what one would write with torch's own layers.

The peer reads the sentences in their order, a batch padded to its longest sentence, every token
through the character convolution at full width, and carries nn.LSTMs along time: a step at a time
(`stepping`), or whole sequences at once. Ours reads sentences of one length together, each word
type through the convolution once, on the layers' own kernels. Both have the same weights, begin
cold and end with the vectors of all layers on the CPU; how far these are apart stands beside the
times.

L layers, B batch, T words, X words with the marks around them, E width, D = 2 E.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from elman.evaluate.contextual import layer_vectors
from elman.evaluate.measuring import Row, interleaved, median, more_is_better, timed
from elman.models.elmo import MARKS, SYMBOLS, BidirectionalLM, ElmoConfig, ElmoEmbedder
from elman.nn.cells import LSTMCell
from elman.nn.character_cnn import spelling_table
from elman.nn.kernels.torch_rnn import torch_weights
from elman.nn.layer import RecurrentLayer

Sentences = Sequence[Sequence[str]]
BATCH_SIZE = 32
"""Sentences that the peer pads together."""


def bench(
    configs: dict[str, ElmoConfig], sentences: Sentences, *, device: str, repeat: int
) -> Iterator[Row]:
    """For each model, words per second beside both peers."""
    num_words = sum(len(words) for words in sentences)
    for name, config in configs.items():
        torch.manual_seed(0)
        model = config.build().eval().to(device)
        padded = Padded(model)
        works: dict[str, Callable[[], list[Tensor]]] = {
            "ours": partial(ours, model, sentences),
            "stepping": partial(padded.vectors, sentences, stepping=True),
            "whole": partial(padded.vectors, sentences, stepping=False),
        }
        found = {peer: work() for peer, work in works.items()}  # a first time, to warm up
        costs = interleaved({peer: timed(work) for peer, work in works.items()}, repeat)
        speeds = {peer: num_words / median(cost).seconds for peer, cost in costs.items()}
        for peer, what in (("stepping", "stepping nn.LSTM"), ("whole", "padded nn.LSTM")):
            yield more_is_better(
                f"{name} on {torch.device(device).type} beside {what}",
                speeds["ours"],
                speeds[peer],
                "words/s",
                sentences=len(sentences),
                words=num_words,
                threads=torch.get_num_threads(),
                difference=_apart(found["ours"], found[peer]),
            )


def ours(model: BidirectionalLM, sentences: Sentences) -> list[Tensor]:
    """The vectors of all layers, from an embedder that has seen nothing yet."""
    embedder = ElmoEmbedder(model).eval().requires_grad_(False)
    return list(layer_vectors(embedder, sentences, layers="all"))


class Padded:
    """The same model on torch's layers, without clipping, which they have not."""

    def __init__(self, model: BidirectionalLM) -> None:
        self.model = model
        with warnings.catch_warnings():  # of torch's, that projections are slow on a CPU
            warnings.simplefilter("ignore")
            self.layers = [
                [_torch_layer(layer) for layer in layers if isinstance(layer, RecurrentLayer)]
                for layers in (model.rightward, model.leftward)
            ]

    @torch.no_grad()
    def vectors(self, sentences: Sentences, *, stepping: bool) -> list[Tensor]:
        """As `ours`."""
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
        # What lies behind a sentence is one more word like any other here.
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
        outputs = [vectors_BXE, _turned(vectors_BXE, lengths)]
        for level in range(self.model.config.num_layers):
            for direction in range(2):
                below = outputs[direction]
                above = _run(self.layers[direction][level], below, stepping)
                residual = level and self.model.config.residual
                outputs[direction] = above + below if residual else above
            layers.append(torch.cat([outputs[0], _turned(outputs[1], lengths)], dim=-1))
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


def _turned(tensor_BXE: Tensor, lengths: Sequence[int]) -> Tensor:
    """Each row's sentence back to front."""
    turned = tensor_BXE.clone()
    for row, length in enumerate(lengths):
        turned[row, :length] = tensor_BXE[row, :length].flip(0)
    return turned


def _apart(ours: Sequence[Tensor], peers: Sequence[Tensor]) -> float:
    """The largest difference of two numbers."""
    return max((a - b).abs().max().item() for a, b in zip(ours, peers, strict=True) if a.numel())
