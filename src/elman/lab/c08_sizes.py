"""C8: a wider window enlarges W; a longer input does not enlarge an RNN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, over_seeds
from elman.models.recurrent import RecurrentLMConfig
from elman.tasks.language_model.window import WindowLMConfig

WINDOWS = (2, 4, 8, 16)
LENGTHS = (2, 20, 200, 2000)


def measure(trial: Trial) -> Iterator[Row]:
    """Count the parameters of both models, with widths drawn by the seed."""
    vocab_size = 100 * int(torch.randint(5, trial.pick(tiny=6, small=60, large=600), ()))
    sizes: dict[str, Any] = {
        "embedding_size": 8 * int(torch.randint(2, 9, ())),
        "hidden_size": 8 * int(torch.randint(2, 9, ())),
    }
    yield {**sizes, "vocab_size": vocab_size}
    for window_size in WINDOWS:
        config = WindowLMConfig(window_size=window_size, direct=trial.knob == "direct", **sizes)
        model = config.build(vocab_size)
        # W is the one matrix from the embeddings side by side to the hidden units.
        shape = (config.hidden_size, window_size * config.embedding_size)
        in_w = sum(p.numel() for p in model.parameters() if p.shape == shape)
        yield {"window": window_size, "W": in_w, "all": parameters(model)}
    for length in LENGTHS[: trial.pick(tiny=2, small=4, large=4)]:
        torch.manual_seed(trial.seed)
        recurrent = RecurrentLMConfig(cell="rnn", kernel="reference", **sizes).build(vocab_size)
        tokens_BT = torch.randint(vocab_size, (1, length + 1))
        saved = Saved()
        with saved:
            logprobs_BT, state = recurrent.logprobs(
                tokens_BT[:, :-1], tokens_BT[:, 1:], recurrent.initial_state(1)
            )
        logprobs_BT.sum().backward()  # type: ignore[no-untyped-call]
        trained = sum(p.numel() for p in recurrent.parameters() if p.grad is not None)
        state_size = sum(part.numel() for part in state.flatten().values())
        yield {"length": length, "all": trained, "state": state_size, "saved": saved.numbers}


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


class Saved(torch.autograd.graph.saved_tensors_hooks):
    """Count the numbers of 4 bytes that a forward pass keeps for its gradients, parameters left
    out.
    """

    def __init__(self) -> None:
        self._seen: dict[int, torch.UntypedStorage] = {}
        super().__init__(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter) and not isinstance(tensor._base, nn.Parameter):
            storage = tensor.untyped_storage()  # views share one
            self._seen[storage.data_ptr()] = storage
        return tensor

    @property
    def numbers(self) -> int:
        return sum(storage.nbytes() for storage in self._seen.values()) // 4


def factor_of_w(rows: Sequence[Row]) -> float:
    """By how much W grows if the window is doubled: the smallest factor."""
    sizes = [row["W"] for row in rows if "window" in row]
    return float(min(after / before for before, after in pairwise(sizes)))


def share_of_w(rows: Sequence[Row]) -> float:
    """The share of all growth of the window model that is in W."""
    first, *_, last = [row for row in rows if "window" in row]
    return float((last["W"] - first["W"]) / (last["all"] - first["all"]))


def growth_of_rnn(rows: Sequence[Row]) -> float:
    """By which share the RNN grows from the shortest input to the longest."""
    first, *_, last = [row for row in rows if "length" in row]
    return float(last["all"] / first["all"] - 1)


def figure(rows: Sequence[Row]) -> Figure:
    windows = [row for row in rows if "window" in row]
    lengths = [row for row in rows if "length" in row]
    return Figure(
        panels=[
            Panel(
                title="The window's matrix W",
                x_label="window (words)",
                y_label="parameters",
                x_log=True,
                y_log=True,
                series=[
                    *over_seeds(windows, x="window", y="W", name="W"),
                    *over_seeds(windows, x="window", y="all", name="the whole window model"),
                ],
            ),
            Panel(
                title="The RNN",
                x_label="input (words)",
                y_label="numbers",
                x_log=True,
                y_log=True,
                series=[
                    *over_seeds(lengths, x="length", y="all", name="parameters"),
                    *over_seeds(lengths, x="length", y="state", name="state carried on"),
                    *over_seeds(lengths, x="length", y="saved", name="kept for the gradient"),
                ],
            ),
        ],
        caption="Means over seeds, each of which draws other widths, with 95 % intervals over "
        "these widths; the counts themselves are exact.",
    )


EXPERIMENT = Experiment(
    id="C8",
    title="window size and model size",
    claim="Enlarging the window of a fixed-window language model enlarges W. The size of a "
    "recurrent model does not increase for longer input.",
    sources=(
        "004: fixed-window neural language model",
        "004: recurrent neural networks",
        "002: pros and cons of recurrent neural networks",
    ),
    design="Parameters are counted, in models whose vocabulary and widths are drawn by the seed. "
    "The window reads 2, 4, 8 and 16 words. The RNN is trained by one step on 2 to 2,000 words, "
    "and every parameter that received a gradient counts. The figure also shows what the RNN "
    "carries from word to word, and what its training keeps in memory.",
    questions=(
        Question(
            name="factor by which W grows if the window is doubled",
            unit="",
            prediction=2.0,
            minimum=1.9,
            effect=factor_of_w,
        ),
        Question(
            name="share of the window model's growth that is in W",
            unit="",
            prediction=1.0,
            minimum=0.99,
            effect=share_of_w,
        ),
        Question(
            name="growth of the RNN from 2 words to 2,000",
            unit="",
            prediction=0.0,
            minimum=0.001,
            rule="within",
            effect=growth_of_rnn,
        ),
    ),
    knob=Knob(
        name="connections",
        meaning="whether the output layer reads the embeddings too (direct, an option of Bengio "
        "and others, 2003) or the hidden layer alone",
        values=("hidden", "direct"),
        default="hidden",
        broken="direct",
    ),
    breaks="With direct connections the output matrix grows with the window too, by vocabulary "
    "times embedding for each word. That is far more than W: most of the growth is no longer in W.",
    limits="An RNN does not grow, its training does: backpropagation through time keeps the states "
    "of all steps, so memory is linear in the length. That is why it is truncated (D1). And a "
    "window needs a matrix per position only because positions have their own weights; a "
    "convolution shares them.",
    measure=measure,
    figure=figure,
    equations=(
        "elman.tasks.language_model.window:WindowLM.hidden",
        "elman.models.recurrent:RecurrentLM.hidden",
        "elman.nn.cells:RNNCell.step",
    ),
    reading=("Bengio, Ducharme, Vincent and Jauvin (2003), A neural probabilistic language model",),
    seconds=12,
)
