"""Write a recurrent cell of your own, put it into a language model, and use it like any other.

    python examples/own_cell.py [my.txt] [steps]

The cell is the minimal gated unit (Zhou and others, 2016), a GRU with one gate instead of two:

    f = sigmoid(W_f x + U_f h + b_f)
    n =    tanh(W_n x + U_n (f * h) + b_n)
    h = (1 - f) * h + f * n

It needs three things. A cell says what one step is. A model joins an input, a layer and an output
layer, and satisfies `elman.models.interface`. Training is a loop that carries a state from batch to
batch. In return everything else works: scoring, decoding, the contract that every model is held to.

B batch, T time steps, V vocabulary, E embedding, H hidden, G gates times H.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman import testing
from elman.api import LM
from elman.batches.encoded import encode_files
from elman.batches.lanes import Lanes
from elman.models.interface import Hidden
from elman.nn.cells import Cell
from elman.nn.heads.full import Full
from elman.nn.inputs import Lookup
from elman.nn.layer import RecurrentLayer
from elman.nn.state import State
from elman.objectives.likelihood import likelihood
from elman.objectives.objective_config import LikelihoodConfig
from elman.text.sources import expand
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer


class MinimalGatedCell(Cell):
    """One step of the equations above."""

    num_gates = 2

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size, output_size=hidden_size, layer_norm=False)
        self.reset_parameters()

    def step(
        self, projected_BG: Tensor, state: State, recurrent_weight: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """`projected_BG` is W x + b for both, computed for all time steps at once."""
        U = self.recurrent_weight if recurrent_weight is None else recurrent_weight
        U_f, U_n = U.chunk(2)
        projected_f, projected_n = projected_BG.chunk(2, dim=1)
        h_BH = state.tensor("h")
        f_BH = torch.sigmoid(projected_f + F.linear(h_BH, U_f))
        n_BH = torch.tanh(projected_n + F.linear(f_BH * h_BH, U_n))
        h_BH = (1 - f_BH) * h_BH + f_BH * n_BH
        return h_BH, State({"h": h_BH})


class MinimalGatedLM(nn.Module):
    """A lookup, a layer that carries the cell along time, and a softmax."""

    def __init__(self, vocab_size: int, embedding_size: int = 32, hidden_size: int = 128) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.input = Lookup(vocab_size, embedding_size)
        self.layer = RecurrentLayer(MinimalGatedCell(embedding_size, hidden_size))
        self.head = Full(hidden_size, vocab_size)

    def initial_state(self, batch_size: int) -> State:
        """The state of the empty prefix."""
        return self.layer.initial_state(batch_size)

    def hidden(self, tokens_BT: Tensor, state: State) -> tuple[Hidden, State]:
        """Read T tokens; return the layer's vector after each of them."""
        outputs_BTH, state = self.layer(self.input(tokens_BT), state)
        return Hidden(dropped_BTH=outputs_BTH, raw_BTH=outputs_BTH), state

    def logprobs(self, tokens_BT: Tensor, targets_BT: Tensor, state: State) -> tuple[Tensor, State]:
        """The log probability that each token is followed by its target."""
        hidden, state = self.hidden(tokens_BT, state)
        return self.head.logprobs(hidden.dropped_BTH, targets_BT), state

    def step(self, tokens_B: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token; return the log probability of every possible next one."""
        output_BH, state = self.layer.step(self.input(tokens_B), state)
        return self.head.logprobs_all(output_BH), state


def train(model: MinimalGatedLM, batches: Lanes, steps: int) -> None:
    """Truncated backpropagation through time: the state flows on, the gradient does not."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.005)
    state: State | None = None
    for number, batch in enumerate(islice(batches, steps), start=1):
        outcome = likelihood(LikelihoodConfig(), model, batch, None if batch.fresh else state)
        optimiser.zero_grad()
        outcome.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        state = outcome.state.detach()
        if number % 50 == 0 or number == steps:
            print(f"step {number}: {outcome.loss.item():.3f} nats per character")


def main(text: str = "python-docs", steps: int = 300) -> None:
    """Check the contract, train on characters, and use the model as any other."""
    torch.manual_seed(1)
    for check in testing.CONTRACT:
        check(MinimalGatedLM(testing.VOCAB_SIZE).eval())
    print("the contract holds")

    files: list[Path] = expand(text)
    tokenizer: Tokenizer
    tokenizer, _ = train_tokenizer(files, TokenizerConfig(kind="char"))
    encoded = encode_files(files, tokenizer)
    model = MinimalGatedLM(tokenizer.vocab_size)
    lanes = Lanes(encoded, boundary_id=tokenizer.boundary_id, batch_size=16, chunk_length=64)
    train(model, lanes, steps)

    lm = LM("minimal gated unit", model.eval(), tokenizer)
    print(f"perplexity of the text: {lm.evaluate(files).perplexity:.2f}")
    print(lm.generate("The ", max_tokens=100, temperature=0.7, seed=1))


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
