"""The discriminator of professor forcing (Lamb and others 2016).

The judge, a bidirectional GRU and a small network on the mean of its vectors, learns to tell
teacher-forced from free-running hidden vectors. The model learns to make the free-running ones
look teacher-forced. Both terms are in one loss: the judge's term sees the vectors as constants,
the model's term sees the judge as a constant.

B batch, T time steps, H hidden.
"""

from __future__ import annotations

from torch import Tensor, cat, nn
from torch.func import functional_call
from torch.nn import functional as F

from elman.nn.stack import Stack, StackConfig

FOOLED = 0.75
"""Up to this accuracy of the judge the model gets no loss from it (the paper's bound)."""
CERTAIN = 0.99
"""From this accuracy on the judge is not trained (the paper's bound)."""


class Judge(nn.Module):
    """Classify sequences of hidden vectors as teacher-forced or free-running."""

    def __init__(self, hidden_size: int, judge_size: int) -> None:
        super().__init__()
        config = StackConfig(cell="gru", hidden_size=judge_size)
        self.encoder = Stack(config, hidden_size, bidirectional=True)
        self.classifier = nn.Sequential(
            nn.Linear(2 * judge_size, judge_size), nn.ReLU(), nn.Linear(judge_size, 1)
        )

    def forward(self, hidden_BTH: Tensor, lengths_B: Tensor | None = None) -> Tensor:
        """Return (B,) logits, above 0 for teacher-forced."""
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
        """Return the judge's loss plus `weight` times the model's."""
        forced_B = self(forced_BTH.detach(), lengths_B)
        free_B = self(free_BTH.detach(), lengths_B)
        judged = (F.softplus(-forced_B) + F.softplus(free_B)).mean()
        accuracy = cat([forced_B > 0, free_B <= 0]).float().mean()
        constant = {name: parameter.detach() for name, parameter in self.named_parameters()}
        fooled_B: Tensor = functional_call(self, constant, (free_BTH, lengths_B))
        fooling = F.softplus(-fooled_B).mean()
        return judged * (accuracy < CERTAIN) + weight * fooling * (accuracy > FOOLED)
