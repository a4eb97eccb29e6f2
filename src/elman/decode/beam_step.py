"""One step of a beam search, in operations on tensors that never wait for the device.

N prompts, W rows per prompt (hypotheses), B = N W rows, K best of a row, E end tokens, V
vocabulary, S source steps.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from elman.base.errors import UsageError
from elman.decode.options import DecodeOptions
from elman.decode.prefix import device_of
from elman.decode.processors import bias, bias_tensors
from elman.nn.state import State

LEAST_COVERAGE = 1e-9
"""Least attention counted for a position: its logarithm must be finite."""


@dataclass(frozen=True)
class Extended:
    """What follows the hypotheses of all prompts."""

    total_NW: Tensor
    """Log P of the W best continuations without an end token; -inf where there are fewer."""
    parents_NW: Tensor
    """The rows that they continue."""
    tokens_NW: Tensor
    ended_NWE: Tensor
    """Log P with each end token, where that is among the W best of all; else -inf."""


class Rules:
    """What the options of a search ask for, on its device."""

    def __init__(
        self,
        options: DecodeOptions,
        end_ids: Collection[int],
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self.options = options
        self.end_tokens = sorted(end_ids)
        self.ends = torch.tensor(self.end_tokens, dtype=torch.long, device=device)
        # Log probabilities remain the model's own if tokens are only ruled out.
        ruled_out = {t: value for t, value in options.logit_bias.items() if value == -torch.inf}
        biases = {t: value for t, value in options.logit_bias.items() if t not in ruled_out}
        self._ruled_out = bias_tensors(ruled_out, vocab_size, device)[0] if ruled_out else None
        self._biases = bias_tensors(biases, vocab_size, device) if biases else None

    @property
    def key(self) -> Hashable:
        """What steps of two searches share if a captured step of one can serve the other."""
        options = self.options
        return (
            *(options.beam_size, options.num_samples, options.length_penalty),
            *(options.coverage_penalty, tuple(sorted(options.logit_bias.items()))),
            tuple(self.end_tokens),
        )

    def possible(self, logprobs_BV: Tensor) -> Tensor:
        """Apply the biases; what is not a number is impossible."""
        if self._biases is not None:
            logprobs_BV = bias(logprobs_BV.float(), *self._biases).log_softmax(dim=-1)
        logprobs_BV = logprobs_BV.nan_to_num(-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        if self._ruled_out is not None:
            logprobs_BV = logprobs_BV.index_fill_(1, self._ruled_out, -torch.inf)
        return logprobs_BV

    def extend(self, logprobs_BV: Tensor, total_NW: Tensor) -> Extended:
        """Find the best continuations of hypotheses whose log P is `total_NW`."""
        num_rows = total_NW.shape[1]
        logprobs_NWV = self.possible(logprobs_BV).view(-1, num_rows, logprobs_BV.shape[-1])
        width = min(self.options.beam_size, logprobs_NWV[0].numel())
        # The best of all rows are among the best of each, ends included.
        several = min(width + len(self.end_tokens), logprobs_NWV.shape[-1])
        best_NWK, words_NWK = logprobs_NWV.topk(several)
        total_NWK = total_NW[:, :, None] + best_NWK.double()
        worst_N1 = total_NWK.flatten(1).topk(width).values[:, -1:]
        ended_NWE = total_NW[:, :, None] + logprobs_NWV[:, :, self.ends].double()
        ended_NWE = ended_NWE.masked_fill(ended_NWE < worst_N1[:, :, None], -torch.inf)
        is_end_NWK = (words_NWK[..., None] == self.ends).any(dim=-1)
        total_NW, chosen_NW = total_NWK.masked_fill(is_end_NWK, -torch.inf).flatten(1).topk(width)
        tokens_NW = words_NWK.flatten(1).gather(1, chosen_NW)
        return Extended(total_NW, chosen_NW // several, tokens_NW, ended_NWE)

    def covered(self, state: State, num_rows: int) -> Tensor:
        """(N, W) what coverage adds to the score of each row."""
        penalty = self.options.coverage_penalty
        if not penalty:
            size = state.batch_size // num_rows, num_rows
            return torch.zeros(size, dtype=torch.float64, device=device_of(state))
        if "attended" not in state:
            raise UsageError(
                "a coverage penalty needs a model with attention", "set coverage_penalty to 0"
            )
        added_B = penalty * coverage(state.tensor("attended"), state.tensor("mask"))
        return added_B.view(-1, num_rows)


def normalise(logprob: float, length: int, length_penalty: float) -> float:
    """Log probability divided by ((5 + length) / 6) ^ length_penalty."""
    return logprob / divisor(length, length_penalty)


def divisor(length: int, length_penalty: float) -> float:
    return float(((5 + length) / 6) ** length_penalty)


def coverage(attended_BS: Tensor, mask_BS: Tensor) -> Tensor:
    """(B,) the sum over real positions of log min(1, attention so far)."""
    logs_BS = attended_BS.double().clamp(LEAST_COVERAGE, 1.0).log()
    return logs_BS.where(mask_BS, 0.0).sum(dim=1)
