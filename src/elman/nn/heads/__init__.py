"""Output layers, one file each, and their table.

All turn hidden vectors into log probabilities over the vocabulary (`Head`); they differ in their
cost for large vocabularies. The table's entries are config classes; `build` makes the layer.
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
