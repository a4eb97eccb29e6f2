"""The configuration of Elman's models in transformers, and what their classes share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from elman.base.errors import UsageError
from elman.base.tables import imported
from elman.tasks import task_named
from elman.tasks.opening import run_config


class ElmanConfig(PretrainedConfig):
    """config.json of a folder for transformers; `elman` has the settings of the run."""

    model_type: ClassVar[str] = "elman"

    def __init__(
        self, elman: Mapping[str, Any] | None = None, vocab_size: int = 0, **entries: Any
    ) -> None:
        self.elman = dict(elman or {})
        self.vocab_size = vocab_size
        super().__init__(**entries)


class ElmanModel(PreTrainedModel):
    """A network of Elman's behind the interface of transformers."""

    config_class = ElmanConfig
    base_model_prefix = "network"
    _is_stateful = True
    """Tells `generate` that its cache cannot be cut to fewer tokens."""

    def __init__(self, config: ElmanConfig) -> None:
        super().__init__(config)
        run = run_config(config.elman, "the entry `elman` of config.json")
        form = task_named(run.task).hugging_face
        if form is None:
            raise UsageError(
                f"models of the task {run.task} cannot be converted for transformers",
                "use `elman.load` for them",
            )
        # Built with its values even where transformers loads weights: some buffers are not saved.
        with torch.device("cpu"):
            self.network: Any = imported(form).build(run, config.to_dict())
        saved = self.network.state_dict().keys()
        self._unsaved = [
            (name, value.clone())
            for name, value in self.network.named_buffers()
            if name not in saved
        ]
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Restore the buffers that are not saved, which transformers replaces by empty ones. A
        network initialises the rest itself."""
        for name, value in self._unsaved:
            owner, _, last = name.rpartition(".")
            if self.network.get_submodule(owner) is module:
                module.get_buffer(last).copy_(value)


def left_aligned(
    tokens_BT: Tensor, mask_BT: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Move the padding of each row behind its tokens.

    Return the tokens, their lengths (None: nothing is padded), and the places from which to gather
    results so that they stand where the tokens stood.
    """
    num_steps = tokens_BT.shape[1]
    if mask_BT is None or bool((mask_BT := mask_BT[:, -num_steps:]).all()):
        return tokens_BT, None, None
    real_BT = mask_BT.bool()
    starts_B1 = real_BT.int().argmax(1, keepdim=True)
    lengths_B = real_BT.sum(1)
    time_1T = torch.arange(num_steps, device=tokens_BT.device).unsqueeze(0)
    inside_BT = (time_1T >= starts_B1) & (time_1T < starts_B1 + lengths_B.unsqueeze(1))
    if not bool((inside_BT == real_BT).all()) or not bool((lengths_B > 0).all()):
        raise UsageError(
            "attention_mask must mark one stretch of tokens in each row",
            "pad on the left or on the right only",
        )
    return (
        tokens_BT.gather(1, (time_1T + starts_B1) % num_steps),
        lengths_B,
        (time_1T - starts_B1) % num_steps,
    )


def moved(tensor_BTX: Tensor, places_BT: Tensor | None) -> Tensor:
    """Put results back where the tokens stood before `left_aligned`."""
    if places_BT is None:
        return tensor_BTX
    return torch.gather(tensor_BTX, 1, places_BT.unsqueeze(2).expand_as(tensor_BTX))
