"""Recurrent language models as `AutoModelForCausalLM`.

The recurrent state is the cache of `generate`: of one size, however long the text. The logits are
log probabilities.

B batch, T time steps, H hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from elman.base.errors import UsageError
from elman.hf.configuration import ElmanModel, left_aligned, moved
from elman.nn.state import State


class RecurrentCache:
    """The state after a prefix, with the methods that `generate` calls on a cache."""

    is_compileable = False

    def __init__(self, state: State, num_tokens: int) -> None:
        self.state = state
        self.num_tokens = num_tokens

    def get_seq_length(self, layer: int = 0) -> int:
        """The number of tokens read, padding included."""
        return self.num_tokens

    def reorder_cache(self, rows_B: Tensor) -> None:
        """Select the rows of the beams that go on."""
        self.state = self.state.select(rows_B)

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.state = self.state.map(lambda tensor: tensor.repeat_interleave(repeats, dim=0))


class ElmanForCausalLM(ElmanModel, GenerationMixin):
    """A recurrent language model."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """No: `generate` is to use the cache that `forward` returns."""
        return False

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: RecurrentCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        inputs_embeds: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """Log probabilities (B, T, V) of the token after each one, and the state as a cache."""
        if input_ids is None or inputs_embeds is not None:
            raise UsageError("this model reads token ids, not vectors", "give input_ids")
        num_rows, num_steps = input_ids.shape
        cache = past_key_values
        seen = 0 if cache is None else cache.num_tokens
        state = self.network.initial_state(num_rows) if cache is None else cache.state
        layers: list[Tensor] | None = None
        tokens_BT, lengths_B, places_BT = left_aligned(input_ids, attention_mask)
        if num_steps == 1 and lengths_B is None and not output_hidden_states:
            logits_BV, state = self.network.step(tokens_BT[:, 0], state)
            logits_BTV = logits_BV.unsqueeze(1)
        else:
            if lengths_B is None and not output_hidden_states:
                hidden, state = self.network.hidden(tokens_BT, state)
                hidden_BTH = hidden.dropped_BTH
            else:
                whole_B = input_ids.new_full((num_rows,), num_steps)
                layers, state = self.network.all_layers(
                    tokens_BT, state, whole_B if lengths_B is None else lengths_B
                )
                layers = [moved(layer, places_BT) for layer in layers]
                hidden_BTH = self.network.dropout_output(layers[-1])
            if isinstance(logits_to_keep, Tensor):
                hidden_BTH = hidden_BTH[:, logits_to_keep]
            elif logits_to_keep:
                hidden_BTH = hidden_BTH[:, -logits_to_keep:]
            logits_BTV = self.network.head.logprobs_all(hidden_BTH)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits_BTV, labels, self.config.vocab_size, **others)
        cached: Any = None if use_cache is False else RecurrentCache(state, seen + num_steps)
        shown: Any = tuple(layers) if output_hidden_states and layers is not None else None
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits_BTV,
            past_key_values=cached,
            hidden_states=shown,
        )
        return output if return_dict is not False else output.to_tuple()
