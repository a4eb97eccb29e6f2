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


class _Labelling(ElmanModel):
    def _without_empty(
        self, tokens_BT: Tensor, mask_BT: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Let an empty text in a batch, all padding, be one token of padding."""
        if mask_BT is None or bool((real_B := mask_BT.bool().any(1)).all()):
            return tokens_BT, mask_BT
        tokens_BT, mask_BT = tokens_BT.clone(), mask_BT.clone()
        tokens_BT[~real_B, 0] = self.config.pad_token_id
        mask_BT[~real_B, 0] = 1
        return tokens_BT, mask_BT


class ElmanForSequenceClassification(_Labelling):
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
        input_ids, attention_mask = self._without_empty(input_ids, attention_mask)
        tokens_BT, lengths_B, _ = left_aligned(input_ids, attention_mask)
        if lengths_B is None:
            lengths_B = torch.full((len(tokens_BT),), tokens_BT.shape[1])
        logits_BN = self.network(tokens_BT, lengths_B)
        loss: Any = None if labels is None else F.cross_entropy(logits_BN, labels.view(-1))
        output = SequenceClassifierOutput(loss=loss, logits=logits_BN)
        return output if return_dict is not False else output.to_tuple()


class ElmanForTokenClassification(_Labelling):
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
            padded = self._without_empty(input_ids, attention_mask)
            tokens_BT, lengths_B, places_BT = left_aligned(*padded)
            if lengths_B is None:
                lengths_B = torch.full((num_rows,), num_steps)
            logits_BTN = moved(self.network(tokens_BT, lengths_B), places_BT)
        else:  # an empty text
            logits_BTN = self.network.output.weight.new_zeros(num_rows, 0, self.config.num_labels)
        loss: Any = None if labels is None else F.nll_loss(logits_BTN.mT, labels)
        found: Any = logits_BTN
        output = TokenClassifierOutput(loss=loss, logits=found)
        return output if return_dict is not False else output.to_tuple()
