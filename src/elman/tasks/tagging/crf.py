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

from elman.nn.along_time import carry_along
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
        alphas_TBN, log_z_B = self._alphas(emissions_BTN, mask_BT)
        _, transition_NN, end_N = self._scores()

        def back(carried: list[Tensor], rows: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            (beta_BN,), (emitted_BN, here_B) = carried, rows
            ahead_BN = beta_BN + emitted_BN
            before_BN = torch.logsumexp(transition_NN + ahead_BN.unsqueeze(1), dim=2)
            beta_BN = torch.where(here_B.unsqueeze(1), before_BN, beta_BN)
            return [beta_BN], [beta_BN]

        last_BN = end_N.expand(emissions_BTN.shape[0], -1)
        later = [rows.flip(0) for rows in self._later(emissions_BTN, mask_BT)]
        _, (betas_TBN,) = carry_along(back, [last_BN], later)
        betas_TBN = torch.cat([last_BN.unsqueeze(0), betas_TBN]).flip(0)
        logs_BTN = (alphas_TBN + betas_TBN).transpose(0, 1) - log_z_B[:, None, None]
        return torch.where(mask_BT.unsqueeze(2), logs_BTN.exp(), 0.0)

    def viterbi(
        self, emissions_BTN: Float[Tensor, "B T N"], mask_BT: Bool[Tensor, "B T"]
    ) -> tuple[Int[Tensor, "B T"], Float[Tensor, "B"]]:
        """The best label sequence (0 for padding) and its score."""
        emissions_BTN = emissions_BTN.float()
        begin_N, transition_NN, end_N = self._scores()

        def ahead(carried: list[Tensor], rows: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            (best_BN,), (emitted_BN, here_B) = carried, rows
            scores_BN, from_BN = (best_BN.unsqueeze(2) + transition_NN).max(dim=1)
            here_B1 = here_B.unsqueeze(1)
            best_BN = torch.where(here_B1, scores_BN + emitted_BN, best_BN)
            # In the padding every label points to itself: backtracking starts at the last word.
            stay_BN = torch.arange(from_BN.shape[1], device=from_BN.device).expand_as(from_BN)
            return [best_BN], [torch.where(here_B1, from_BN, stay_BN)]

        def back(carried: list[Tensor], rows: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            label_B = rows[0].gather(1, carried[0].unsqueeze(1)).squeeze(1)
            return [label_B], [label_B]

        later = self._later(emissions_BTN, mask_BT)
        (best_BN,), (came_from_TBN,) = carry_along(ahead, [begin_N + emissions_BTN[:, 0]], later)
        scores_B, label_B = (best_BN + end_N).max(dim=1)
        _, (earlier_TB,) = carry_along(back, [label_B], [came_from_TBN.flip(0)])
        labels_TB = torch.cat([label_B.unsqueeze(0), earlier_TB]).flip(0)
        return labels_TB.t() * mask_BT, scores_B

    def _alphas(self, emissions_BTN: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """The forward algorithm: log sums (T, B, N) over all rows that end in each label, and over
        all rows."""
        begin_N, transition_NN, end_N = self._scores()

        def ahead(carried: list[Tensor], rows: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            (alpha_BN,), (emitted_BN, here_B) = carried, rows
            sums_BN = torch.logsumexp(alpha_BN.unsqueeze(2) + transition_NN, dim=1)
            alpha_BN = torch.where(here_B.unsqueeze(1), sums_BN + emitted_BN, alpha_BN)
            return [alpha_BN], [alpha_BN]

        first_BN = begin_N + emissions_BTN[:, 0]
        later = self._later(emissions_BTN, mask_BT)
        (last_BN,), (alphas_TBN,) = carry_along(ahead, [first_BN], later)
        alphas_TBN = torch.cat([first_BN.unsqueeze(0), alphas_TBN])
        return alphas_TBN, torch.logsumexp(last_BN + end_N, dim=1)

    @staticmethod
    def _later(emissions_BTN: Tensor, mask_BT: Tensor) -> list[Tensor]:
        """Emissions and mask of all words but the first, time first."""
        return [emissions_BTN[:, 1:].transpose(0, 1), mask_BT[:, 1:].t()]

    def _scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of beginning, transitions and end, with the penalties."""
        n = self.begin_N.shape[0]
        penalty = self.penalty
        return (
            self.begin_N + penalty[n, :n],
            self.transition_NN + penalty[:n, :n],
            self.end_N + penalty[:n, n + 1],
        )
