"""The reference kernel: a loop over the cell, which lies beside the cells' equations."""

from elman.nn.cells import run, step

__all__ = ["run", "step"]
