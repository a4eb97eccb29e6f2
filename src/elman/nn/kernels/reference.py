"""The reference kernel: `run` and `step` of `nn/cells.py`, beside the cells' equations."""

from elman.nn.cells import run, step

__all__ = ["run", "step"]
