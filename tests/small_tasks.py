"""Small models of every task that reads sentences, and their batches as they are and padded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from elman import testing
from elman.batches.conditional import conditional_batch
from elman.models.decoder import DecoderConfig
from elman.nn.character_cnn import CharacterCNNConfig, spelling_table
from elman.nn.graphed import Figures
from elman.nn.layer import RecurrentLayer
from elman.nn.state import State
from elman.objectives.objective_config import RegimeConfig
from elman.objectives.outcome import Outcome
from elman.objectives.regimes import training_objective
from elman.tasks.classification.batches import batch_of_rows
from elman.tasks.classification.model import ClassifierConfig
from elman.tasks.classification.objective import ClassificationConfig, classification
from elman.tasks.conditional.model import ConditionalLMConfig
from elman.tasks.elmo.batches import Spellings
from elman.tasks.elmo.model import ElmoConfig, spelled
from elman.tasks.elmo.objective import bidirectional_likelihood
from elman.tasks.tagging.batches import encode_tagged, tagged_batch
from elman.tasks.tagging.model import TaggerConfig
from elman.tasks.tagging.objective import tagging
from elman.tasks.tagging.vocabulary import make_vocabulary
from tiny_models import TINY

WORDS = "the a dog cat mat Philadelphia sees runs under-the-table ."


def uncompiled(model: nn.Module) -> nn.Module:
    """Let torch compute the recurrent layers: compiling a kernel takes longer than a test."""
    for layer in model.modules():
        if isinstance(layer, RecurrentLayer):
            layer.kernel = "reference"
    return model


def updates(model: nn.Module, objective: Callable[[Any, State | None], Outcome]) -> Any:
    """An update of plain gradient descent."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)

    def update(batch: Any, state: State | None) -> tuple[Figures, State | None]:
        optimiser.zero_grad(set_to_none=True)
        outcome = objective(batch, state)
        outcome.loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        after = None if outcome.state is None else outcome.state.detach()
        return (outcome.nats,), after

    return update


def tagger(output: Any = "crf", characters: Any = "cnn") -> tuple[nn.Module, Any, Any]:
    random = np.random.default_rng(1)
    words = WORDS.split()
    rows = [
        (list(chosen), [word[0] for word in chosen])
        for length in (1, 3, 3, 4, 5, 5, 7)
        for chosen in [random.choice(words, length)]
    ]
    vocabulary, counts = make_vocabulary(rows)
    data = encode_tagged(rows, vocabulary)
    table_SC = spelling_table(data.spellings, 24)
    config = TaggerConfig(
        hidden_size=5,
        embedding_size=4,
        character_size=4,
        output=output,
        characters=characters,
        character_cnn=CharacterCNNConfig(character_size=3, filters=(2, 2, 3), num_highway=0),
    )
    model = config.build(
        vocabulary.vocab_size, len(vocabulary.labels), counts_V=torch.tensor(counts)
    )

    def make(indices: list[int]) -> Any:
        return tagged_batch([data.sentences[i] for i in indices], table_SC)

    return model, partial(tagging, model), make


def classifier(
    pooling: Any = ("max", "mean", "attention", "last"), pairs: bool = False, device: str = "cpu"
) -> Any:
    config = ClassifierConfig(hidden_size=4, embedding_size=3, pooling=pooling, joint_size=3)
    model = config.build(9, 3, pairs=pairs)
    texts = [[(3 * i + j) % 9 for j in range(length)] for i, length in enumerate((1, 2, 5, 6, 9))]
    rows = [[text, texts[-1 - i]] if pairs else [text] for i, text in enumerate(texts)]
    settings = ClassificationConfig(label_smoothing=0.1)
    objective = partial(classification, settings, model, torch.tensor([0.5, 1.0, 2.0]).to(device))

    def make(indices: list[int]) -> Any:
        return batch_of_rows([rows[i % 5] for i in indices], [i % 3 for i in indices])

    return model, objective, make


def elmo() -> Any:
    words = WORDS.split()
    config = ElmoConfig(
        hidden_size=6,
        projection_size=4,
        character_cnn=CharacterCNNConfig(
            character_size=3, filters=(2, 3, 2), max_characters=20, padding="read"
        ),
    )
    model = config.build(len(words) + 2)
    table_VC = spelled(["<S>", "</S>", "<eos>", "<unk>", *words], config.character_cnn).numpy()
    lengths_V = (table_VC != config.character_cnn.alphabet.padding).sum(1)
    spellings = Spellings(table_VC, lengths_V, 3, len(words), 0, 1)

    def make(indices: list[int]) -> Any:
        length = 2 + indices[0] % 3
        rows = [[2 + (i + j) % len(words) for j in range(length)] for i in indices]
        return partial(spellings.batch, np.array(rows))

    return model, partial(bidirectional_likelihood, model), make


def translator(name: str = "input feeding", smoothing: float = 0.1) -> Any:
    model = testing.build(TINY[name])
    objective = training_objective(RegimeConfig(label_smoothing=smoothing), model, end_id=2)

    def make(indices: list[int]) -> Any:
        sources = [[3 + (i + j) % 5 for j in range(1 + i % 7)] for i in indices]
        longest = max(map(len, sources))
        source_BS = torch.tensor([source + [0] * (longest - len(source)) for source in sources])
        mask_BS = torch.arange(longest) < torch.tensor([[len(source)] for source in sources])
        texts = [[3 + (i * j) % 5 for j in range(1 + (3 * i) % 11)] for i in indices]
        return conditional_batch((source_BS, mask_BS), texts, 2, num_padded=2)

    return model, objective, make


def conditional() -> Any:
    model = ConditionalLMConfig(
        labels=("a", "b"), decoder=DecoderConfig(hidden_size=6, embedding_size=4, attention="none")
    ).build(9)
    objective = training_objective(RegimeConfig(activation_penalty=1.0), model, end_id=2)

    def make(indices: list[int]) -> Any:
        labels_B = torch.tensor([i % 2 for i in indices])
        return conditional_batch((labels_B,), [[3] * (1 + i % 9) for i in indices], 2)

    return model, objective, make


TASKS: dict[str, Callable[[], Any]] = {
    "tagger, crf": tagger,
    "tagger, softmax": partial(tagger, "softmax", "lstm"),
    "classifier": classifier,
    "classifier of pairs": partial(classifier, pairs=True),
    "elmo": elmo,
    "translator, input feeding": translator,
    "translator, one pass": partial(translator, "attention bilinear", 0.0),
    "conditional": conditional,
}


def both(made: Any) -> tuple[Any, Any]:
    """A batch as it is, and padded."""
    if isinstance(made, partial):
        return made(), made(bucketed=True)
    return made, made.bucketed()
