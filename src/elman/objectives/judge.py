"""The judge of professor forcing: from hidden vectors alone, was the model reading the truth?

Lamb and others (2016). The judge, a bidirectional GRU and a small network on the mean of its
vectors, learns to tell teacher-forced from free-running hidden vectors; the model learns to make
its free-running ones pass for the others. Both are parts of one loss: where the judge learns the
vectors are constants, where the model learns the judge is one.

B batch, T time steps, H hidden.
"""

from __future__ import annotations

from torch import Tensor, cat, nn
from torch.func import functional_call
from torch.nn import functional as F

from elman.nn.stack import Stack, StackConfig

FOOLED = 0.75
"""Up to this share of right verdicts the model has nothing to learn from the judge (the paper's
bound).
"""
CERTAIN = 0.99
"""From this one on the judge has nothing to learn (likewise)."""


class Judge(nn.Module):
    """Tells teacher-forced from free-running hidden vectors of `hidden_size`."""

    def __init__(self, hidden_size: int, judge_size: int) -> None:
        super().__init__()
        config = StackConfig(cell="gru", hidden_size=judge_size, num_layers=1, bidirectional=True)
        self.encoder = Stack(config, hidden_size)
        self.classifier = nn.Sequential(
            nn.Linear(2 * judge_size, judge_size), nn.ReLU(), nn.Linear(judge_size, 1)
        )

    def forward(self, hidden_BTH: Tensor, lengths_B: Tensor | None = None) -> Tensor:
        """(B,) Above 0 where the judge believes that the truth was read."""
        encoded_BTJ, _ = self.encoder(hidden_BTH, None, lengths_B)
        lengths = encoded_BTJ.shape[1] if lengths_B is None else lengths_B.clamp(min=1)[:, None]
        logits: Tensor = self.classifier(encoded_BTJ.sum(dim=1) / lengths)[:, 0]
        return logits

    def loss(
        self,
        forced_BTH: Tensor,
        free_BTH: Tensor,
        lengths_B: Tensor | None = None,
        *,
        weight: float,
    ) -> Tensor:
        """What the judge learns from and, `weight`ed, what the model learns from the judge."""
        forced_B = self(forced_BTH.detach(), lengths_B)
        free_B = self(free_BTH.detach(), lengths_B)
        judged = (F.softplus(-forced_B) + F.softplus(free_B)).mean()
        accuracy = cat([forced_B > 0, free_B <= 0]).float().mean()
        constant = {name: parameter.detach() for name, parameter in self.named_parameters()}
        fooled_B: Tensor = functional_call(self, constant, (free_BTH, lengths_B))
        fooling = F.softplus(-fooled_B).mean()
        return judged * (accuracy < CERTAIN) + weight * fooling * (accuracy > FOOLED)
