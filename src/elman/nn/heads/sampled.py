"""Output layers that train against a sample of the vocabulary instead of all of it.

Noise words are drawn from the word frequencies to a power, once for all rows of a batch. There are
three ways to learn from them, with s(w) = w . h + b the score of a word, y the target, S the number
of draws, q(w) the probability of a draw:

    sampled_softmax   the softmax over y and the distinct noise words, each score lowered by the
                      log of the probability that the word is among S draws, 1 - (1 - q)^S
                      (Bengio and Senecal, 2008; Jean and others, 2015)
    nce               tell y from noise, word by word: logistic regression on s(w) - log(S q(w)),
                      scores taken as already normalised (Mnih and Teh, 2012)
    blackout          the softmax over y and the noise words, weighted 1 / q, with a term for each
                      noise word: log p(y) + sum log(1 - p(w)) (Ji and others, 2016)

A noise word that equals a row's target is ignored in that row, except for nce, whose derivation
includes it. As S grows, the gradient tends to that of the full softmax: exactly for
sampled_softmax, for nce if scores are normalised, for blackout except for the target's own
probability, which is small. Evaluation and log probabilities always use the full softmax.

N rows, V vocabulary, H hidden, S distinct noise words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.base.config import at_least
from elman.nn.heads.full import Full
from elman.nn.heads.head import HeadConfig
from elman.nn.heads.softmax import unigram
from elman.nn.shapes import Bool, Float, Int

RESOLUTION = 1 << 53
"""The proposal is stored as integers out of this many, so that no change of dtype can round it."""


class Sampled(Full):
    """softmax(V h + b), trained on noise words."""

    exact: bool = False
    cumulative_V1: Tensor

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        tied_to: nn.Embedding | None,
        counts_V: Tensor | None,
        config: SampledConfig,
    ) -> None:
        bias_counts_V = counts_V if config.unigram_bias else None
        if bias_counts_V is None and config.method == "nce":
            bias_counts_V = torch.ones(vocab_size)  # nce assumes normalised scores
        super().__init__(hidden_size, vocab_size, tied_to, bias_counts_V)
        self.method = config.method
        self.num_samples = config.num_samples
        if counts_V is None:
            counts_V = torch.ones(vocab_size)
        tickets_V = (unigram(counts_V, config.power) * RESOLUTION).round().long().clamp(min=1)
        self.register_buffer("cumulative_V1", F.pad(tickets_V.cumsum(0), (1, 0)))

    def _losses(self, hidden_NH: Tensor, targets_N: Tensor, contexts_NO: Tensor | None) -> Tensor:
        if not self.training:
            return -self._logprobs(hidden_NH, targets_N, contexts_NO)
        self.softmax.claim(targets_N, contexts_NO)
        noise_S, counts_S = torch.unique(self._draw(), return_counts=True)
        # One gather for targets and noise: one gradient of the size of the matrix, not two.
        words = torch.cat([targets_N, noise_S])
        weight_VH = self.softmax.weight
        # A MaxEnt model's matrix has no columns; torch's gradient of such rows reads out of bounds
        # on CUDA.
        is_empty = weight_VH.shape[1] == 0
        rows = weight_VH[:1].expand(len(words), 0) if is_empty else F.embedding(words, weight_VH)
        biases = F.embedding(words, self.softmax.bias.unsqueeze(1)).squeeze(1)
        sizes = [len(targets_N), len(noise_S)]
        (target_rows_NH, noise_rows_SH) = torch.split(rows, sizes)
        (target_biases_N, noise_biases_S) = torch.split(biases, sizes)
        target_scores_N = (hidden_NH * target_rows_NH).sum(1) + target_biases_N
        noise_scores_NS = F.linear(hidden_NH, noise_rows_SH, noise_biases_S)
        if self.softmax.ngrams is not None and contexts_NO is not None:
            words_NX = torch.cat(
                [targets_N.unsqueeze(1), noise_S.expand(len(targets_N), -1)], dim=1
            )
            found_NX = self.softmax.ngrams.scores(contexts_NO, words_NX)
            target_scores_N = target_scores_N + found_NX[:, 0]
            noise_scores_NS = noise_scores_NS + found_NX[:, 1:]
        dtype = torch.promote_types(noise_scores_NS.dtype, torch.float32)
        drawn = Drawn(
            target_scores_N.to(dtype),
            noise_scores_NS.to(dtype),
            self.proposal(targets_N).to(dtype),
            self.proposal(noise_S).to(dtype),
            counts_S,
            targets_N.unsqueeze(1) == noise_S,
            self.num_samples,
        )
        return LOSSES[self.method](drawn)

    def proposal(self, words: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Return the probability q of drawing each of these words."""
        tickets = self.cumulative_V1[words + 1] - self.cumulative_V1[words]
        return tickets.double() / self.cumulative_V1[-1]

    def _draw(self) -> Tensor:
        total = int(self.cumulative_V1[-1])
        ticket = torch.randint(total, (self.num_samples,), device=self.cumulative_V1.device)
        return torch.searchsorted(self.cumulative_V1, ticket, right=True) - 1


@dataclass(frozen=True, kw_only=True)
class SampledConfig(HeadConfig):
    """A full softmax that trains against sampled noise words."""

    layer = Sampled

    kind: Literal["sampled"] = "sampled"
    method: Literal["sampled_softmax", "nce", "blackout"] = "sampled_softmax"
    """The training method: sampled_softmax, nce or blackout."""
    num_samples: int = 512
    """Noise words drawn per batch, shared by its tokens."""
    power: float = 0.75
    """Noise words are drawn from frequencies to this power: 1 as in text, 0 uniformly."""

    def __post_init__(self) -> None:
        at_least("model.head.num_samples", self.num_samples, 1)
        at_least("model.head.power", self.power, 0)


@dataclass(frozen=True)
class Drawn:
    """Scores s and probabilities q of the targets and of the distinct noise words."""

    target_scores_N: Float[Tensor, "N"]
    noise_scores_NS: Float[Tensor, "N S"]
    target_chances_N: Float[Tensor, "N"]
    noise_chances_S: Float[Tensor, "S"]
    counts_S: Int[Tensor, "S"]
    """How often each noise word was drawn."""
    hits_NS: Bool[Tensor, "N S"]
    """Where a noise word equals the target."""
    num_samples: int


def sampled_softmax(drawn: Drawn) -> Float[Tensor, "N"]:
    """-log softmax of the target among it and the distinct noise words, corrected for the draws."""
    S = drawn.num_samples
    target_N = drawn.target_scores_N - _log_inclusion(drawn.target_chances_N, S)
    noise_NS = drawn.noise_scores_NS - _log_inclusion(drawn.noise_chances_S, S)
    noise_NS = noise_NS.masked_fill(drawn.hits_NS, -torch.inf)
    logits = torch.cat([target_N.unsqueeze(1), noise_NS], dim=1)
    return F.cross_entropy(
        logits, torch.zeros_like(drawn.hits_NS[:, 0], dtype=torch.long), reduction="none"
    )


def nce(drawn: Drawn) -> Float[Tensor, "N"]:
    """-log P(the target is data) - sum over draws of log P(the draw is noise)."""
    target_N = drawn.target_scores_N - (drawn.num_samples * drawn.target_chances_N).log()
    noise_NS = drawn.noise_scores_NS - (drawn.num_samples * drawn.noise_chances_S).log()
    return F.softplus(-target_N) + F.softplus(noise_NS) @ drawn.counts_S.to(noise_NS.dtype)


def blackout(drawn: Drawn) -> Float[Tensor, "N"]:
    """-log p(target) - sum over draws of log(1 - p(draw)), p the softmax weighted by 1 / chance."""
    target_N = drawn.target_scores_N - drawn.target_chances_N.log()
    noise_NS = drawn.noise_scores_NS - drawn.noise_chances_S.log()
    noise_NS = noise_NS.masked_fill(drawn.hits_NS, -torch.inf)
    counted_NS = noise_NS + drawn.counts_S.log()
    total_N = torch.logaddexp(target_N, torch.logsumexp(counted_NS, dim=1))
    # log(1 - p) by expm1; clamped because its gradient diverges at p = 1.
    noise_logprobs_NS = (noise_NS - total_N.unsqueeze(1)).clamp(max=-1e-6)
    rejected_NS = (-torch.expm1(noise_logprobs_NS)).log()
    return total_N - target_N - rejected_NS @ drawn.counts_S.to(rejected_NS.dtype)


LOSSES = {"sampled_softmax": sampled_softmax, "nce": nce, "blackout": blackout}


def _log_inclusion(chances: Tensor, num_samples: int) -> Tensor:
    """log(1 - (1 - q)^S): the log probability that a word is among the S draws."""
    return (-torch.expm1(num_samples * torch.log1p(-chances))).log()
