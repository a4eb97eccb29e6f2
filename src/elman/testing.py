"""For tests of language models: a toy corpus, and the contract.

The contract is a set of functions `check_*`, each of which asserts one property of a model. The
suite in `tests/contract` runs them on a tiny model of every kind; use them for your own models too.

B batch, T time steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.interface import LanguageModel, NeuralLanguageModel
from elman.nn.state import State

VOCAB_SIZE = 23

_SENTENCES = list(
    product(
        ("student", "pupil", "teacher", "old professor"),
        ("opened", "closed", "lost", "found"),
        ("the", "her"),
        ("book", "laptop", "window", "exam paper"),
    )
)

TOY_TEXT = "".join(
    f"the {subject} {verb} {article} {thing} .\n" for subject, verb, article, thing in _SENTENCES
)
"""A few kilobytes of sentences, one per line."""

_PARTS_OF_SPEECH = {
    **dict.fromkeys(("the", "her"), "DET"),
    **dict.fromkeys(("opened", "closed", "lost", "found"), "VERB"),
    "old": "ADJ",
    ".": "PUNCT",
}

TOY_TREEBANK = "".join(
    f"# sent_id = toy-{number}\n"
    + "".join(
        f"{i}\t{word}\t{word}\t{_PARTS_OF_SPEECH.get(word, 'NOUN')}\t_\t_\t_\t_\t_\t_\n"
        for i, word in enumerate(line.split(), start=1)
    )
    + "\n"
    for number, line in enumerate(TOY_TEXT.splitlines(), start=1)
)
"""The same sentences in CoNLL-U with their parts of speech."""

TOY_LABELLED = "".join(
    f"{'good' if verb in ('opened', 'found') else 'bad'}\tthe {who} {verb} {whose} {thing}\n"
    for who, verb, whose, thing in _SENTENCES
)
"""Lines with a label, good or bad, a tab, and a text."""

TOY_PAIRS = "label\tfirst\tsecond\n" + "".join(
    f"{'same' if even else 'other'}\tthe {who} {verb} {whose} {thing}\t"
    f"{whose} {thing} {'was' if even else 'was not'} {verb}\n"
    for number, (who, verb, whose, thing) in enumerate(_SENTENCES)
    for even in [number % 2 == 0]
)
"""A table of pairs of sentences that say the same, or not."""


def build(config: Any, *, seed: int = 0) -> Any:
    """Build a model in evaluation mode over `VOCAB_SIZE` words with decreasing counts."""
    torch.manual_seed(seed)
    counts_V = torch.arange(VOCAB_SIZE, 0, -1) * 10
    words = {} if hasattr(config, "decoder") else {"spellings": spellings(), "boundary_id": 2}
    return config.build(VOCAB_SIZE, counts_V=counts_V, **words).eval()


def spellings() -> list[str]:
    """Words for the tiny vocabulary, of various lengths, some not ASCII."""
    return ["<eos>", "<unk>", *("aéx字"[i % 4] * (i % 12 + 1) for i in range(VOCAB_SIZE - 2))]


def some_tokens(batch_size: int, num_steps: int, *, seed: int = 1) -> Tensor:
    """Random token ids, (B, T), on torch's default device."""
    generator, shape = torch.Generator().manual_seed(seed), (batch_size, num_steps)
    tokens_BT = torch.randint(VOCAB_SIZE, shape, generator=generator, device="cpu")
    return tokens_BT.to(torch.get_default_device())


def whole(model: LanguageModel, tokens_BT: Tensor, state: State | None = None) -> Tensor:
    """The log probabilities of each token given those before it, (B, T - 1)."""
    if state is None:
        state = model.initial_state(tokens_BT.shape[0])
    return model.logprobs(tokens_BT[:, :-1], tokens_BT[:, 1:], state)[0]


@torch.no_grad()
def check_shapes(model: LanguageModel) -> None:
    """Shapes are right, and every distribution sums to one."""
    tokens_BT = some_tokens(3, 6)
    state = model.initial_state(3)
    assert state.batch_size == 3
    logprobs_BV, after = model.step(tokens_BT[:, 0], state)
    assert logprobs_BV.shape == (3, model.vocab_size)
    assert after.batch_size == 3
    _close(logprobs_BV.exp().sum(1), torch.ones(3))
    logprobs_BT, after = model.logprobs(tokens_BT[:, :-1], tokens_BT[:, 1:], state)
    assert logprobs_BT.shape == (3, 5)
    assert bool((logprobs_BT < 0).all())
    shapes = {name: tensor.shape for name, tensor in state.flatten().items()}
    assert {name: tensor.shape for name, tensor in after.flatten().items()} == shapes


@torch.no_grad()
def check_stepwise_equals_whole(model: LanguageModel) -> None:
    """Reading token by token gives the same results and states as reading all at once."""
    tokens_BT = some_tokens(3, 8)
    expected, expected_state = model.logprobs(
        tokens_BT[:, :-1], tokens_BT[:, 1:], model.initial_state(3)
    )
    state = model.initial_state(3)
    for time in range(7):
        logprobs_BV, state = model.step(tokens_BT[:, time], state)
        _close(logprobs_BV.gather(1, tokens_BT[:, time + 1 : time + 2])[:, 0], expected[:, time])
    _close_states(state, expected_state)


@torch.no_grad()
def check_chunked_equals_whole(model: LanguageModel) -> None:
    """Reading in chunks, with the state carried over, gives the same results."""
    tokens_BT = some_tokens(2, 9)
    expected = whole(model, tokens_BT)
    for cut in (1, 3, 7):
        first, state = model.logprobs(
            tokens_BT[:, :cut], tokens_BT[:, 1 : cut + 1], model.initial_state(2)
        )
        second = whole(model, tokens_BT[:, cut:], state)
        _close(torch.cat([first, second], dim=1), expected)


@torch.no_grad()
def check_blind_to_the_future(model: LanguageModel) -> None:
    """Later tokens do not change earlier predictions."""
    tokens_BT = some_tokens(2, 8)
    changed_BT = tokens_BT.clone()
    changed_BT[:, 5] = (changed_BT[:, 5] + 1) % VOCAB_SIZE
    before, after = whole(model, tokens_BT), whole(model, changed_BT)
    _close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4], after[:, 4])


@torch.no_grad()
def check_rows_are_independent(model: LanguageModel) -> None:
    """A row's predictions do not depend on the other rows of the batch."""
    tokens_BT = some_tokens(3, 7)
    together = whole(model, tokens_BT)
    for row in range(3):
        _close(whole(model, tokens_BT[row : row + 1]), together[row : row + 1])


@torch.no_grad()
def check_state_rows(model: LanguageModel) -> None:
    """`State.select` picks and repeats rows, and `State.cat` joins them."""
    tokens_BT = some_tokens(3, 5)
    _, state = model.logprobs(tokens_BT[:, :-1], tokens_BT[:, 1:], model.initial_state(3))
    expected, _ = model.step(tokens_BT[:, -1], state)
    rows = [2, 0, 2, 1]
    picked, _ = model.step(tokens_BT[rows, -1], state.select(rows))
    _close(picked, expected[rows])
    joined, _ = model.step(tokens_BT[[1, 0], -1], State.cat([state.select([1]), state.select([0])]))
    _close(joined, expected[[1, 0]])


@torch.no_grad()
def check_state_is_a_value(model: LanguageModel) -> None:
    """A state can be used twice: nothing is kept on the model or changed in place."""
    tokens_BT = some_tokens(2, 6)
    _, state = model.logprobs(tokens_BT[:, :3], tokens_BT[:, 1:4], model.initial_state(2))
    kept = state.map(torch.clone)
    first = whole(model, tokens_BT, state)
    model.step(tokens_BT[:, 0], state)
    _close(whole(model, tokens_BT, state), first)
    _close_states(state, kept)


CONTRACT: tuple[Callable[[LanguageModel], None], ...] = (
    check_shapes,
    check_stepwise_equals_whole,
    check_chunked_equals_whole,
    check_blind_to_the_future,
    check_rows_are_independent,
    check_state_rows,
    check_state_is_a_value,
)
"""What every language model satisfies."""


def check_repeats_under_a_seed(make: Callable[[], Any]) -> None:
    """The same seed gives the same model and the same training step."""
    tokens_BT = some_tokens(2, 6)

    def losses() -> Tensor:
        torch.manual_seed(3)
        model = make().train()
        hidden, _ = model.hidden(tokens_BT[:, :-1], model.initial_state(2))
        result: Tensor = model.head.losses(
            hidden.dropped_BTH, tokens_BT[:, 1:], hidden.contexts_BTO
        )
        return result

    torch.testing.assert_close(losses(), losses(), rtol=0, atol=0)


def check_learns_one_batch(model: NeuralLanguageModel, *, most_steps: int = 300) -> None:
    """Training on one batch overfits it, and every parameter gets a gradient."""
    assert isinstance(model, nn.Module)
    tokens_BT = some_tokens(2, 5)
    tokens_BT[:, 0] = torch.arange(2)  # rows with the same start are indistinguishable

    def nats() -> float:
        with torch.no_grad():
            model.eval()
            return float(-whole(model, tokens_BT).mean())

    goal = 0.3 * nats()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    for step in range(most_steps):
        model.train()
        hidden, _ = model.hidden(tokens_BT[:, :-1], model.initial_state(2))
        loss = model.head.losses(hidden.dropped_BTH, tokens_BT[:, 1:], hidden.contexts_BTO).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if step % 10 == 9 and nats() < goal:
            break
    unmoved = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not unmoved, f"no gradient reaches {unmoved}"
    assert nats() < goal, f"{nats():.3f} nats per token after {most_steps} steps, not {goal:.3f}"


def _close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def _close_states(actual: State, expected: State) -> None:
    torch.testing.assert_close(actual.flatten(), expected.flatten(), rtol=1e-4, atol=1e-5)
