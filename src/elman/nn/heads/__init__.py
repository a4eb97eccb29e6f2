"""Output layers, one file each, and the table that names them.

All turn hidden vectors into log probabilities over the vocabulary (`Head`); they differ in what a
large vocabulary costs. The table's entries are the config classes; each config builds its output
layer with `build`.
"""

from elman.base.tables import Table
from elman.nn.heads.head import Head, HeadConfig

__all__ = ["HEADS", "Head", "HeadConfig"]

HEADS: Table = {
    "full": "elman.nn.heads.full:FullConfig",
    "adaptive": "elman.nn.heads.adaptive:AdaptiveConfig",
    "sampled": "elman.nn.heads.sampled:SampledConfig",
    "mixture": "elman.nn.heads.mixture:MixtureConfig",
}
