"""Pre-trained word vectors beside a task model's own: ELMo, a language model's states, GloVe.

    x_k = [word; characters; ELMo_k^input]      input of the first recurrent layer
    h_k = [hidden_k; ELMo_k^output]             input of the output layer, if wanted

Each place has its own mix of layers (`nn/layer_mix.py`), as published (Peters and others, 2018). A
frozen embedder gives the same vectors in every epoch, so they are computed once for as many
sentences as the cache holds. A fine-tuned one learns with the task, as in ULMFiT (Howard and Ruder,
2018): the top layer is unfrozen first, and lower layers learn more slowly.

L layers, B batch, T time steps of the task model, W words, D numbers per word and layer.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.base.config import at_least, between, refuse_unread
from elman.base.errors import UsageError
from elman.batches.buckets import batches_by_length
from elman.batches.wording import Wording
from elman.models.embedder import Embedder
from elman.nn.dropout import Dropout
from elman.nn.layer_mix import LayerMix, Layers
from elman.nn.shapes import Float
from elman.nn.unfreezing import GradualUnfreezing

Place = Literal["input", "output"]
WORDS_PER_BATCH = 4096
"""Words embedded at a time when sentences are cached beforehand."""
_ONE_AT_A_TIME = threading.Lock()
"""Embedders cache vectors of word types between calls, and a server calls from several threads."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingsConfig:
    """Pre-trained word vectors, beside the model's own."""

    path: str = ""
    """A run folder of a model that embeds words, a folder of published ELMo weights, or a file of
    word vectors (GloVe, word2vec); empty for none. The run keeps its own copy."""
    layers: Layers = "mix"
    """How to combine layers: a learnt weighted sum (mix), the top one (top), or all side by side
    (concat)."""
    layer_norm: bool = False
    """Whether to normalise each layer's vectors before mixing."""
    scale: float = 0.1
    """Initial value of the learnt factor gamma. Small, so that the vectors start no larger than the
    model's own: dropout on large ones drowns those."""
    enters: Literal["input", "output", "both"] = "input"
    """Where they enter: before the first recurrent layer (input), after the last (output),
    or both."""
    dropout: float = 0.5
    """Dropout on them."""
    fine_tuned: bool = False
    """Whether the embedder learns with the task; otherwise it is frozen."""
    unfreeze_epochs: float = 1.0
    """fine_tuned: epochs after which the next lower layer is unfrozen; 0 unfreezes all at the
    start."""
    rate: float = 0.1
    """fine_tuned: the learning rate of its top layer, as a fraction of the model's."""
    rate_decay: float = 2.6
    """fine_tuned: how many times slower each layer learns than the one above it."""
    max_words: int = 0
    """Files of word vectors: read only the first (most frequent) words; 0 for all."""
    cache_megabytes: int = 2000
    """Frozen: memory for cached vectors."""

    def __post_init__(self) -> None:
        between("model.embeddings.dropout", self.dropout, 0, 1, below=True)
        for name in ("unfreeze_epochs", "rate", "max_words", "cache_megabytes"):
            at_least(f"model.embeddings.{name}", getattr(self, name), 0)
        at_least("model.embeddings.rate_decay", self.rate_decay, 1)
        if not 0 < self.scale < math.inf:
            raise UsageError(f"model.embeddings.scale cannot be {self.scale}", "use 0.1 or 1")
        if not self.path:
            unread = {f.name for f in fields(self)} - {"path"}, "path to the vectors"
        elif self.fine_tuned:
            unread = {"cache_megabytes"}, "fine_tuned to false"
        else:
            unread = {"unfreeze_epochs", "rate", "rate_decay"}, "fine_tuned to true"
        refuse_unread(self, "model.embeddings", *unread)


class Embeddings(nn.Module):
    """An embedder and the mixes of its layers; without an embedder it adds nothing."""

    def __init__(self, config: EmbeddingsConfig, embedder: Embedder | None) -> None:
        super().__init__()
        self.config = config
        self.mixes = nn.ModuleDict()
        self.dropout = Dropout(config.dropout, locked=False)
        self._known: dict[tuple[str, ...], Tensor] = {}
        self.embedder = embedder
        if embedder is None:
            return
        self.num_layers = 1 if config.layers == "top" else embedder.num_layers
        # On SMS spam, random vectors at scale 1 gave an F1 of 6 % after 300 updates; at 0.1 it was
        # 94 %, and without them 89 %.
        for place in ("input", "output") if config.enters == "both" else (config.enters,):
            self.mixes[place] = LayerMix(
                self.num_layers,
                embedder.size,
                config.layers,
                layer_norm=config.layer_norm,
                scale=config.scale,
            )
        for parameter in embedder.parameters():
            parameter.requires_grad_(False)
        if config.fine_tuned:
            for group in embedder.groups():
                for parameter in group:
                    parameter.requires_grad_(True)
            self.register_load_state_dict_post_hook(  # type: ignore[no-untyped-call]
                lambda module, keys: module.embedder.forget()
            )
        else:
            embedder.eval()
            # Frozen weights are saved once in the run folder, not in every checkpoint.
            self.register_state_dict_post_hook(_without_embedder)  # type: ignore[no-untyped-call]
            self.register_load_state_dict_post_hook(_allow_no_embedder)  # type: ignore[no-untyped-call]

    def size(self, place: Place) -> int:
        """Numbers added to each word at a place."""
        return cast(LayerMix, self.mixes[place]).output_size if place in self.mixes else 0

    def train(self, mode: bool = True) -> Embeddings:
        """Set the mode; a frozen embedder stays in evaluation mode."""
        super().train(mode)
        if self.embedder is not None:
            self.embedder.train(mode and self.config.fine_tuned)
            if self.embedder.training:  # its weights are about to change
                self.embedder.forget()
        return self

    @property
    def wanted(self) -> bool:
        """Whether there is an embedder, so that batches need a wording."""
        return self.embedder is not None

    def read(self, wording: Wording | None, num_steps: int) -> Float[Tensor, "L B T D"] | None:
        """Return the layers' vectors of each token's word, zeros without a word; None without an
        embedder."""
        if self.embedder is None:
            return None
        assert wording is not None, "pre-trained embeddings need the words of the batch"
        words_LBWD = self._layers(wording.words)
        num_words = words_LBWD.shape[2]
        if wording.aligned:
            return F.pad(words_LBWD, (0, 0, 0, num_steps - num_words))
        # Place -1 (no word) selects the added last row of zeros.
        rows_BT = wording.places(num_steps).to(words_LBWD.device) % (num_words + 1)
        index_LBTD = rows_BT[None, :, :, None].expand(
            words_LBWD.shape[0], -1, -1, words_LBWD.shape[3]
        )
        return F.pad(words_LBWD, (0, 0, 0, 1)).gather(2, index_LBTD)

    def beside(
        self,
        vectors_BTE: Float[Tensor, "B T E"],
        layers_LBTD: Float[Tensor, "L B T D"] | None,
        at: Place,
    ) -> Float[Tensor, "B T F"]:
        """Concatenate the mixed layers to `vectors_BTE`, if they enter at this place."""
        if at not in self.mixes or layers_LBTD is None:
            return vectors_BTE
        mixed_BTD = self.dropout(self.mixes[at](layers_LBTD))
        return torch.cat([vectors_BTE, mixed_BTD.to(vectors_BTE.dtype)], dim=2)

    @torch.no_grad()
    def remember(self, sentences: Iterable[Sequence[str]]) -> None:
        """Cache the vectors of sentences that will come again, as many as memory allows.

        Which ones are cached, and how they are batched, depends only on the sentences, so a resumed
        run continues with exactly the same numbers.
        """
        if self.embedder is None or self.config.fine_tuned:
            return
        unknown = list({tuple(words) for words in sentences if words} - self._known.keys())
        unknown.sort(key=lambda words: (len(words), words))
        bytes_per_word = 2 * self.num_layers * self.embedder.size
        room = self.config.cache_megabytes * 1_000_000 - sum(
            tensor.numel() * 2 for tensor in self._known.values()
        )
        for indices in batches_by_length(
            [len(words) for words in unknown], WORDS_PER_BATCH, alike=1
        ):
            some = [unknown[i] for i in indices]
            room -= sum(map(len, some)) * bytes_per_word
            if room < 0:
                return
            layers_LBWD = self._computed(some)
            for row, words in enumerate(some):
                self._known[words] = layers_LBWD[:, row, : len(words)].clone()

    def unfreezing(self) -> GradualUnfreezing | None:
        """Return the unfreezing schedule of a fine-tuned embedder."""
        if self.embedder is None or not self.config.fine_tuned:
            return None
        return GradualUnfreezing(
            self.embedder.groups(),
            epochs_per_group=self.config.unfreeze_epochs,
            rate=self.config.rate,
            rate_decay=self.config.rate_decay,
        )

    def weights(self) -> dict[str, Any]:
        """Return what the task learnt of mixed layers: by place their weights, bottom first, and
        the scale."""
        mixes = {place: cast(LayerMix, module) for place, module in self.mixes.items()}
        return {
            place: {"weights": mix.shares().tolist(), "scale": mix.scale.item()}
            for place, mix in mixes.items()
            if mix.kind == "mix"
        }

    def _layers(self, sentences: Sequence[tuple[str, ...]]) -> Tensor:
        """(L, B, W, D) from the cache or the embedder; zeros beyond a sentence."""
        if self.config.fine_tuned:
            return self._computed(sentences)
        unknown = list(dict.fromkeys(w for w in sentences if w and w not in self._known))
        fresh: dict[tuple[str, ...], Tensor] = {}
        if unknown:
            with torch.no_grad():
                layers_LBWD = self._computed(unknown)
            fresh = {w: layers_LBWD[:, row, : len(w)] for row, w in enumerate(unknown)}
        num_words = max((len(words) for words in sentences), default=0)
        shape = (self.num_layers, 0, self._inside.size)
        nothing = torch.zeros(shape, dtype=torch.float16, device=self._device)
        found = [self._known.get(words, fresh.get(words, nothing)) for words in sentences]
        padded = [
            row if row.shape[1] == num_words else F.pad(row, (0, 0, 0, num_words - row.shape[1]))
            for row in found
        ]
        return torch.stack([row.float() for row in padded], dim=1)

    def _computed(self, sentences: Sequence[tuple[str, ...]]) -> Tensor:
        """(L, B, W, D) from the embedder, in half precision if frozen, cached or not."""
        full = [row for row, words in enumerate(sentences) if words]
        some = [sentences[row] for row in full]
        num_words = max((len(words) for words in sentences), default=0)
        if full:
            with _ONE_AT_A_TIME:
                layers_LBWD, _ = self._inside.forward(some)
        else:
            shape = (self._inside.num_layers, 0, num_words, self._inside.size)
            layers_LBWD = torch.zeros(shape, device=self._device)
        layers_LBWD = layers_LBWD[-self.num_layers :]
        if not self.config.fine_tuned:
            layers_LBWD = layers_LBWD.half()
        if len(full) == len(sentences):
            return layers_LBWD
        shape = (layers_LBWD.shape[0], len(sentences), *layers_LBWD.shape[2:])
        index_B = torch.tensor(full, dtype=torch.long, device=self._device)
        return layers_LBWD.new_zeros(shape).index_copy(1, index_B, layers_LBWD)

    @property
    def _inside(self) -> Embedder:
        assert self.embedder is not None
        return self.embedder

    @property
    def _device(self) -> torch.device:
        return next(self._inside.parameters()).device


def layer_weights(model: nn.Module) -> dict[str, Any]:
    """`Embeddings.weights` of a task model; empty if it has none."""
    embeddings = getattr(model, "embeddings", None)
    return embeddings.weights() if isinstance(embeddings, Embeddings) else {}


def _without_embedder(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]
) -> None:
    for name in [name for name in state if name.startswith(f"{prefix}embedder.")]:
        del state[name]


def _allow_no_embedder(module: nn.Module, keys: Any) -> None:
    keys.missing_keys[:] = [name for name in keys.missing_keys if "embedder." not in name]
