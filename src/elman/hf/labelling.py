"""Models that label whole texts, as `AutoModelForSequenceClassification`.

B batch, T time steps, N labels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput

from elman.base.errors import UsageError
from elman.hf.configuration import ElmanModel, left_aligned


class ElmanForSequenceClassification(ElmanModel):
    """One label for a text."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> Any:
        """The score of every label (B, N)."""
        if input_ids is None:
            raise UsageError("this model reads token ids", "give input_ids")
        if not input_ids.shape[1]:  # an empty text is read as one boundary token, as in training
            input_ids = input_ids.new_full((len(input_ids), 1), self.config.pad_token_id).long()
            attention_mask = None
        tokens_BT, lengths_B, _ = left_aligned(input_ids, attention_mask)
        if lengths_B is None:
            lengths_B = torch.full((len(tokens_BT),), tokens_BT.shape[1])
        logits_BN = self.network(tokens_BT, lengths_B)
        loss: Any = None if labels is None else F.cross_entropy(logits_BN, labels.view(-1))
        output = SequenceClassifierOutput(loss=loss, logits=logits_BN)
        return output if return_dict is not False else output.to_tuple()
