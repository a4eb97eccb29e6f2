"""Models that label texts and words, as `AutoModelForSequenceClassification` and
`AutoModelForTokenClassification`.

B batch, T time steps, N labels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput

from elman.base.errors import UsageError
from elman.hf.configuration import ElmanModel, left_aligned, moved


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


class ElmanForTokenClassification(ElmanModel):
    """A label for every word, given at each of its tokens."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> Any:
        """The log probability of every label (B, T, N); the label -100 is left out of the loss."""
        if input_ids is None:
            raise UsageError("this model reads token ids", "give input_ids")
        num_rows, num_steps = input_ids.shape
        if num_steps:
            tokens_BT, lengths_B, places_BT = left_aligned(input_ids, attention_mask)
            if lengths_B is None:
                lengths_B = torch.full((num_rows,), num_steps)
            logits_BTN = moved(self.network(tokens_BT, lengths_B), places_BT)
        else:  # an empty text
            logits_BTN = self.network.output.weight.new_zeros(num_rows, 0, self.config.num_labels)
        loss: Any = None if labels is None else F.nll_loss(logits_BTN.mT, labels)
        logits: Any = logits_BTN
        output = TokenClassifierOutput(loss=loss, logits=logits)
        return output if return_dict is not False else output.to_tuple()
