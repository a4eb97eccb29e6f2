"""The adaptive softmax (Grave and others, 2017): rare words are in clusters that are seldom
computed.

The most frequent words, the short list, share the first softmax with one entry per cluster; the
probability of a word in a cluster is that of the cluster times its probability in the cluster's own
softmax. Clusters of rarer words read narrower vectors. Words are ranked by frequency when the layer
is built, and the ranks are saved with it.

N rows, V vocabulary, H hidden, K clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.base.config import at_least
from elman.base.errors import UsageError
from elman.nn.heads.cross_entropy import target_logprobs
from elman.nn.heads.head import Head, HeadConfig
from elman.nn.heads.softmax import log_softmax, small_uniform, unigram


class Adaptive(Head):
    """A softmax over the short list and the clusters, and one softmax per cluster."""

    words_V: Tensor
    ranks_V: Tensor

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        tied_to: nn.Embedding | None,
        counts_V: Tensor | None,
        config: AdaptiveConfig,
    ) -> None:
        super().__init__(hidden_size, vocab_size)
        self._tied_to: tuple[nn.Embedding, ...] = () if tied_to is None else (tied_to,)
        self.bounds = _bounds(config.cutoffs, vocab_size)
        """The start of the short list and of each cluster, and the end."""
        sizes = [high - low for low, high in pairwise(self.bounds)]
        num_clusters = len(sizes) - 1
        words_V = torch.arange(vocab_size)
        if counts_V is not None:
            words_V = torch.argsort(counts_V.cpu(), descending=True, stable=True)
        self.register_buffer("words_V", words_V)
        self.register_buffer("ranks_V", torch.argsort(words_V))
        self.cluster_weight = nn.Parameter(small_uniform(num_clusters, hidden_size))
        self.biases = nn.ParameterList(
            [torch.zeros(size + (num_clusters if i == 0 else 0)) for i, size in enumerate(sizes)]
        )
        self.projections = nn.ParameterList()
        self.weights = nn.ParameterList()
        if tied_to is None:
            widths = [max(1, int(hidden_size / config.shrink**i)) for i in range(len(sizes))]
            self.projections.extend(
                [nn.init.xavier_uniform_(torch.empty(width, hidden_size)) for width in widths[1:]]
            )
            self.weights.extend(
                [small_uniform(*shape) for shape in zip(sizes, widths, strict=True)]
            )
        if counts_V is not None and config.unigram_bias:
            self._start_at(unigram(counts_V.cpu())[words_V])

    def _logprobs_all(self, hidden_NH: Tensor, contexts_NO: Tensor | None) -> Tensor:
        matrices = self._matrices()
        first_NX = self._logprobs_within(0, hidden_NH, matrices)
        short = self.bounds[1]
        pieces = [first_NX[:, :short]]
        for cluster in range(1, len(matrices)):
            inside_NX = self._logprobs_within(cluster, hidden_NH, matrices)
            pieces.append(inside_NX + first_NX[:, short + cluster - 1, None])
        return torch.cat(pieces, dim=1).index_select(1, self.ranks_V)

    def _logprobs(self, hidden_NH: Tensor, targets_N: Tensor, contexts_NO: Tensor | None) -> Tensor:
        matrices = self._matrices()
        ranks_N = self.ranks_V[targets_N]
        starts = torch.tensor(self.bounds[1:-1], device=ranks_N.device)
        cluster_N = torch.bucketize(ranks_N, starts, right=True)
        first_N = torch.where(cluster_N == 0, ranks_N, self.bounds[1] + cluster_N - 1)
        logprobs_N = target_logprobs(hidden_NH, matrices[0], self.biases[0], first_N)
        for cluster in range(1, len(matrices)):
            (rows_n,) = torch.nonzero(cluster_N == cluster, as_tuple=True)
            if len(rows_n):
                inside_n = target_logprobs(
                    self._narrowed(cluster, hidden_NH.index_select(0, rows_n)),
                    matrices[cluster],
                    self.biases[cluster],
                    ranks_N[rows_n] - self.bounds[cluster],
                )
                logprobs_N = logprobs_N.index_add(0, rows_n, inside_n)
        return logprobs_N

    def _matrices(self) -> list[Tensor]:
        """Return the matrix of the first softmax and of each cluster; if tied, slices of one."""
        if self._tied_to:
            ranked_VH = F.embedding(self.words_V, self._tied_to[0].weight)
            sizes = [high - low for low, high in pairwise(self.bounds)]
            first, *rest = torch.split(ranked_VH, sizes)
        else:
            first, *rest = list(self.weights)
        return [torch.cat([first, self.cluster_weight]), *rest]

    def _narrowed(self, cluster: int, hidden_NH: Tensor) -> Tensor:
        if cluster == 0 or self._tied_to:
            return hidden_NH
        return F.linear(hidden_NH, self.projections[cluster - 1])

    def _logprobs_within(self, cluster: int, hidden_NH: Tensor, matrices: list[Tensor]) -> Tensor:
        narrow_NX = self._narrowed(cluster, hidden_NH)
        logits_NX = F.linear(narrow_NX, matrices[cluster], self.biases[cluster])
        return log_softmax(logits_NX)

    @torch.no_grad()
    def _start_at(self, unigram_V: Tensor) -> None:
        """Set biases that alone give these probabilities to the words, by rank."""
        pieces = [unigram_V[a:b] for a, b in pairwise(self.bounds)]
        clusters = torch.stack([piece.sum() for piece in pieces])[1:]
        self.biases[0].copy_(torch.cat([pieces[0], clusters]).log())
        for bias, piece in zip(list(self.biases)[1:], pieces[1:], strict=True):
            bias.copy_((piece / piece.sum()).log())


@dataclass(frozen=True, kw_only=True)
class AdaptiveConfig(HeadConfig):
    """A short list of frequent words, and clusters of rarer ones."""

    layer = Adaptive

    kind: Literal["adaptive"] = "adaptive"
    cutoffs: tuple[int, ...] = ()
    """Ranks at which clusters begin; empty for a tenth and four tenths of the vocabulary."""
    shrink: float = 4.0
    """How much narrower each cluster's vectors are than the one before; 1 if tied."""

    def __post_init__(self) -> None:
        at_least("model.head.shrink", self.shrink, 1)


def _bounds(cutoffs: tuple[int, ...], vocab_size: int) -> list[int]:
    if not cutoffs:
        cutoffs = tuple(c for c in (vocab_size // 10, 4 * vocab_size // 10) if c > 0)
    bounds = [0, *cutoffs, vocab_size]
    if any(low >= high for low, high in pairwise(bounds)):
        raise UsageError(
            f"cutoffs {list(cutoffs)} do not rise between 0 and the vocabulary size {vocab_size}",
            "leave cutoffs out, or give rising ranks below the vocabulary size",
        )
    return bounds
