"""A linear-chain conditional random field: scores of whole label sequences.

    score(y) = begin(y_1) + sum_t emission_t(y_t) + sum_t transition(y_{t-1}, y_t) + end(y_T)
    P(y | x) = exp score(y) / Z,     Z = sum over all label sequences

Z comes from the forward algorithm, the marginals P(y_t | x) from forward-backward, the best
sequence from Viterbi. Transitions can be forbidden (E-PER after O): probability 0.
Everything is computed in float32 or better: sums of logarithms lose too much in half precision.

B batch, T time steps, N labels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elman.nn.shapes import Bool, Float, Int

FORBIDDEN = -1e4
"""Score of a forbidden transition. Its exponential is 0; unlike -inf, differences are not NaN."""


class LinearChainCRF(nn.Module):
    """Transition scores between labels, and scores of the first and the last label.

    `allowed` (N + 2, N + 2) says which label may follow which; the last two rows and columns are
    the beginning and the end of a sentence.
    """

    penalty: Tensor

    def __init__(
        self, num_labels: int, *, allowed: Bool[Tensor, "edges edges"] | None = None
    ) -> None:
        super().__init__()
        self.transition_NN = nn.Parameter(torch.zeros(num_labels, num_labels))
        self.begin_N = nn.Parameter(torch.zeros(num_labels))
        self.end_N = nn.Parameter(torch.zeros(num_labels))
        if allowed is None:
            allowed = torch.ones(num_labels + 2, num_labels + 2, dtype=torch.bool)
        self.register_buffer("penalty", torch.where(allowed, 0.0, FORBIDDEN), persistent=False)

    def losses(
        self,
        emissions_BTN: Float[Tensor, "B T N"],
        labels_BT: Int[Tensor, "B T"],
        mask_BT: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "B"]:
        """-log P of the labels of each sentence; the mask is True for real words."""
        emissions_BTN = emissions_BTN.float()
        return self._alphas(emissions_BTN, mask_BT)[1] - self.score(
            emissions_BTN, labels_BT, mask_BT
        )

    def score(
        self,
        emissions_BTN: Float[Tensor, "B T N"],
        labels_BT: Int[Tensor, "B T"],
        mask_BT: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "B"]:
        begin_N, transition_NN, end_N = self._scores()
        labels_BT = labels_BT.clamp(min=0)
        emitted_BT = emissions_BTN.gather(2, labels_BT.unsqueeze(2)).squeeze(2)
        moved_BT = transition_NN[labels_BT[:, :-1], labels_BT[:, 1:]]
        last_B = labels_BT.gather(1, (mask_BT.sum(1) - 1).unsqueeze(1)).squeeze(1)
        inner = (emitted_BT * mask_BT).sum(1) + (moved_BT * mask_BT[:, 1:]).sum(1)
        return inner + begin_N[labels_BT[:, 0]] + end_N[last_B]

    def log_partition(
        self, emissions_BTN: Float[Tensor, "B T N"], mask_BT: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B"]:
        """log Z."""
        return self._alphas(emissions_BTN.float(), mask_BT)[1]

    def marginals(
        self, emissions_BTN: Float[Tensor, "B T N"], mask_BT: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B T N"]:
        """P(y_t | x) of every label of every word; 0 for padding."""
        emissions_BTN = emissions_BTN.float()
        alphas, log_z_B = self._alphas(emissions_BTN, mask_BT)
        _, transition_NN, end_N = self._scores()
        beta_BN = end_N.expand(emissions_BTN.shape[0], -1)
        betas = [beta_BN]
        for time in range(emissions_BTN.shape[1] - 1, 0, -1):
            ahead_BN = beta_BN + emissions_BTN[:, time]
            before_BN = torch.logsumexp(transition_NN + ahead_BN.unsqueeze(1), dim=2)
            beta_BN = torch.where(mask_BT[:, time : time + 1], before_BN, beta_BN)
            betas.append(beta_BN)
        logs_BTN = torch.stack(alphas, 1) + torch.stack(betas[::-1], 1) - log_z_B[:, None, None]
        return torch.where(mask_BT.unsqueeze(2), logs_BTN.exp(), 0.0)

    def viterbi(
        self, emissions_BTN: Float[Tensor, "B T N"], mask_BT: Bool[Tensor, "B T"]
    ) -> tuple[Int[Tensor, "B T"], Float[Tensor, "B"]]:
        """The best label sequence (0 for padding) and its score."""
        emissions_BTN = emissions_BTN.float()
        begin_N, transition_NN, end_N = self._scores()
        best_BN = begin_N + emissions_BTN[:, 0]
        came_from = []
        for time in range(1, emissions_BTN.shape[1]):
            scores_BN, from_BN = (best_BN.unsqueeze(2) + transition_NN).max(dim=1)
            here_B1 = mask_BT[:, time : time + 1]
            best_BN = torch.where(here_B1, scores_BN + emissions_BTN[:, time], best_BN)
            # In the padding every label points to itself: backtracking starts at the last word.
            stay_BN = torch.arange(from_BN.shape[1], device=from_BN.device).expand_as(from_BN)
            came_from.append(torch.where(here_B1, from_BN, stay_BN))
        scores_B, label_B = (best_BN + end_N).max(dim=1)
        labels = [label_B]
        for from_BN in reversed(came_from):
            label_B = from_BN.gather(1, label_B.unsqueeze(1)).squeeze(1)
            labels.append(label_B)
        return torch.stack(labels[::-1], dim=1) * mask_BT, scores_B

    def _alphas(self, emissions_BTN: Tensor, mask_BT: Tensor) -> tuple[list[Tensor], Tensor]:
        """The forward algorithm: log sums over all rows that end in each label, step by step."""
        begin_N, transition_NN, end_N = self._scores()
        alpha_BN = begin_N + emissions_BTN[:, 0]
        alphas = [alpha_BN]
        for time in range(1, emissions_BTN.shape[1]):
            sums_BN = torch.logsumexp(alpha_BN.unsqueeze(2) + transition_NN, dim=1)
            alpha_BN = torch.where(
                mask_BT[:, time : time + 1], sums_BN + emissions_BTN[:, time], alpha_BN
            )
            alphas.append(alpha_BN)
        return alphas, torch.logsumexp(alpha_BN + end_N, dim=1)

    def _scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of beginning, transitions and end, with the penalties."""
        n = self.begin_N.shape[0]
        penalty = self.penalty
        return (
            self.begin_N + penalty[n, :n],
            self.transition_NN + penalty[:n, :n],
            self.end_N + penalty[:n, n + 1],
        )
