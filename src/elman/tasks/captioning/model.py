"""Image to text: a small convolutional network and a decoder with attention.

    m = conv(picture)          a map of vectors, flattened: what attention is over
    c = max of m               h_0 = tanh(W c + b)                  (Xu and others, 2015)

Each layer halves the picture. Coordinates are added to the colours at the input (Liu and others,
2018), because neither convolution nor attention knows positions. Batch normalisation, of c too,
amplifies the small differences between pictures: with group normalisation and the mean for c, 547
sentences of NLVR were learned as if there were no pictures. A blind captioner is the same network
without the picture; the difference between the two is what pictures contribute.

B batch, C channels, M channels of the map, S positions of the map, T time steps, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.base.config import at_least, between
from elman.base.errors import UsageError
from elman.models.decoder import Bridge, Condition, Decoder, DecoderConfig, DecoderModel
from elman.nn.state import State


@dataclass(frozen=True, kw_only=True)
class CaptionerConfig:
    """A convolutional network and a decoder."""

    kind: Literal["captioner"] = "captioner"
    height: int = 64
    """Height to which pictures are resized."""
    width: int = 64
    """Width to which pictures are resized."""
    channels: tuple[int, ...] = (16, 32, 64)
    """Channels of each convolution; each halves the picture."""
    dropout: float = 0.0
    """Dropout on the map."""
    blind: bool = False
    """Hide the pictures from the model, to measure what they contribute."""
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    """The decoder."""

    def __post_init__(self) -> None:
        for name in ("height", "width"):
            at_least(f"model.{name}", getattr(self, name), 1)
        between("model.dropout", self.dropout, 0, 1, below=True)
        if not self.channels or min(self.channels) < 1:
            raise UsageError("model.channels needs a number for each convolution", "try [16, 32]")

    def build(self, vocab_size: int, *, counts_V: Tensor | None = None) -> Captioner:
        return Captioner(self, vocab_size, counts_V=counts_V)


class Captioner(DecoderModel):
    def __init__(
        self, config: CaptionerConfig, vocab_size: int, *, counts_V: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = config
        layers: list[nn.Module] = []
        before = 5  # three colours and two coordinates
        for number in config.channels:
            layers += [
                nn.Conv2d(before, number, 3, stride=2, padding=1),
                BatchNormalisation(number),
                nn.ReLU(),
            ]
            before = number
        self.looking = nn.Sequential(*layers)
        self.dropout = nn.Dropout(config.dropout)
        self.summary = BatchNormalisation(before)
        self.bridge = Bridge(config.decoder, before)
        self.decoder = Decoder(config.decoder, vocab_size, before, counts_V=counts_V)

    def condition(self, pictures_BCHW: Tensor) -> State:
        """Encode pictures, 0 to 255; return the state of the empty text."""
        pictures = pictures_BCHW.to(self.bridge.linear.weight.dtype) / 127.5 - 1
        if self.config.blind:
            pictures = torch.zeros_like(pictures)
        batch_size, _, height, width = pictures.shape
        rows = torch.linspace(-1, 1, height, device=pictures.device, dtype=pictures.dtype)
        columns = torch.linspace(-1, 1, width, device=pictures.device, dtype=pictures.dtype)
        places_2HW = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))
        places = places_2HW.expand(batch_size, 2, height, width)
        map_BMHW = self.looking(torch.cat([pictures, places], dim=1))
        memory_BSM = self.dropout(map_BMHW.flatten(2).transpose(1, 2))
        mask_BS = torch.ones(memory_BSM.shape[:2], dtype=torch.bool, device=memory_BSM.device)
        summary_BM = self.summary(memory_BSM.amax(dim=1))
        layers = self.bridge(summary_BM)
        return self.decoder.start(Condition(memory_BSM, mask_BS, summary_BM, layers))

    def initial_state(self, batch_size: int) -> State:
        """The state of the empty text for a black picture."""
        shape = (batch_size, 3, self.config.height, self.config.width)
        return self.condition(self.bridge.linear.weight.new_zeros(shape))


class BatchNormalisation(nn.Module):
    """Batch normalisation (Ioffe and Szegedy, 2015).

    Unlike torch's, it accepts a training batch with one value per channel, which has no variance:
    the running averages are used then.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.register_buffer("mean", torch.zeros(num_channels))
        self.register_buffer("variance", torch.ones(num_channels))

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise inputs (B, C, ...)."""
        learns = self.training and inputs.numel() > inputs.shape[1]
        return F.batch_norm(
            inputs, self.mean, self.variance, self.weight, self.bias, training=learns
        )
