"""Vectors for words and texts from inside a language model.

    type-based           one vector per word of the vocabulary: the input layer's (`word_vectors`)
    token-based, left    one vector per token: the top layer's after reading the text up to it
                         (`contextual_vectors`)
    sequence             one vector per text: the last of those (`sequence_vectors`)

B batch, T time steps, V vocabulary, E embedding, H hidden, K neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.base.errors import UsageError
from elman.batches.buckets import batches_by_length, pad
from elman.decode.prefix import CHUNK_LENGTH, device_of
from elman.evaluate.sequences import TOKENS_PER_BATCH
from elman.models.interface import LanguageModel, NeuralLanguageModel, is_neural, reading
from elman.nn.shapes import Float

WINDOW = 256
"""Texts considered together, to batch those of similar length."""


def word_vectors(model: LanguageModel) -> Float[Tensor, "V E"]:
    """Return the input layer's vector of every id."""
    layer: Any = getattr(model, "input", None)
    if not hasattr(layer, "all_types"):
        raise UsageError("this model has no word vectors", "use a neural language model")
    with reading(model):
        vectors_VE: Tensor = layer.all_types().detach()
    return vectors_VE


def neighbours(
    vectors_VE: Float[Tensor, "V E"], token: int, k: int = 10, *, exclude: Sequence[int] = ()
) -> list[tuple[int, float]]:
    """Return the k ids nearest to `token` by cosine, best first, without itself and `exclude`."""
    vectors_VE = F.normalize(vectors_VE.float(), dim=-1)
    cosine_V = vectors_VE @ vectors_VE[token]
    cosine_V[[token, *exclude]] = -torch.inf
    values_K, tokens_K = cosine_V.topk(min(k, len(cosine_V)))
    return [
        (token, cosine)
        for token, cosine in zip(tokens_K.tolist(), values_K.tolist(), strict=True)
        if cosine > -torch.inf
    ]


def contextual_vectors(
    model: LanguageModel, sequences: Iterable[Sequence[int]], *, boundary_id: int
) -> Iterator[Float[Tensor, "T H"]]:
    """For each sequence, in order, yield a vector per token: the top layer after reading up to it.

    Each sequence is a separate text, read after the boundary token.
    """
    for vectors_TH in _hidden(model, sequences, boundary_id, last=False):
        yield vectors_TH[1:]


def sequence_vectors(
    model: LanguageModel, sequences: Iterable[Sequence[int]], *, boundary_id: int
) -> Iterator[Float[Tensor, "H"]]:
    """For each sequence, in order, yield the vector after its last token (or the boundary)."""
    for vectors_TH in _hidden(model, sequences, boundary_id, last=True):
        yield vectors_TH[-1]


def _hidden(
    model: LanguageModel, sequences: Iterable[Sequence[int]], boundary_id: int, *, last: bool
) -> Iterator[Tensor]:
    """Yield top hidden vectors after the boundary and each token, or only after the last one."""
    if not is_neural(model) or not model.head.hidden_size:
        raise UsageError("this model has no hidden vectors", "use a neural language model")
    stream = iter(sequences)
    while window := list(islice(stream, WINDOW)):
        texts = [[boundary_id, *sequence] for sequence in window]
        vectors: list[Tensor] = [torch.empty(0)] * len(texts)
        for batch in batches_by_length([len(text) for text in texts], TOKENS_PER_BATCH):
            some = _hidden_of_batch(model, [texts[i] for i in batch], boundary_id, last=last)
            for i, vectors_TH in zip(batch, some, strict=True):
                vectors[i] = vectors_TH
        yield from vectors


def _hidden_of_batch(
    model: NeuralLanguageModel, texts: list[list[int]], padding_id: int, *, last: bool
) -> list[Tensor]:
    tokens_BT, _ = pad(texts, padding_id)
    parts: list[list[Tensor]] = [[] for _ in texts]
    with reading(model):
        state = model.initial_state(len(texts))
        tokens_BT = tokens_BT.to(device_of(state))
        for start in range(0, tokens_BT.shape[1], CHUNK_LENGTH):
            hidden, state = model.hidden(tokens_BT[:, start : start + CHUNK_LENGTH], state)
            vectors_BTH = hidden.raw_BTH.float().cpu()
            for row, text in enumerate(texts):
                length = len(text) - start
                if last and not 0 < length <= CHUNK_LENGTH:
                    continue
                # Cloned, so that a short row does not keep the whole batch in memory.
                first = length - 1 if last else 0
                parts[row].append(vectors_BTH[row, first : max(length, 0)].clone())
    return [torch.cat(part) for part in parts]
