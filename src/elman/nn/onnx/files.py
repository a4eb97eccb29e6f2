"""Write a recorded function as an ONNX file, and check it with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from elman.base.errors import ElmanError
from elman.nn.onnx.tracing import OPSET, Function, plain_torch, record

EXACT = 1e-6
"""Weights that int8 changes by more, in proportion to the largest of their row, stay float32."""


def need_onnx() -> None:
    """Refuse to write ONNX files without the packages for it."""
    need_onnxruntime()
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise ElmanError("ONNX files need the onnx package", "pip install 'elman[onnx]'") from error


def need_onnxruntime() -> None:
    try:
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ElmanError(
            "ONNX files need the onnxruntime package", "pip install 'elman[onnx]'"
        ) from error


def model_bytes(function: Function, metadata: Mapping[str, str], *, int8: bool = False) -> bytes:
    """A function as the content of an ONNX file, with weights of one byte if `int8`."""
    from onnx import helper, numpy_helper

    graph, inputs, outputs = record(function)
    tensors, restored = [], []
    for key, tensor in graph.initializers.items():
        packed = _int8(tensor) if int8 else None
        if packed is None:
            tensors.append(numpy_helper.from_array(tensor.contiguous().numpy(), key))
            continue
        parts = [f"{key}:int8", f"{key}:scale"]
        tensors += map(numpy_helper.from_array, (x.numpy() for x in packed), parts)
        restored.append(helper.make_node("DequantizeLinear", parts, [key], name=key, axis=0))
    proto = helper.make_model(
        helper.make_graph([*restored, *graph.nodes], "elman", inputs, outputs, tensors),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
        producer_name="elman",
    )
    helper.set_model_props(proto, dict(metadata))
    content: bytes = proto.SerializeToString()
    return content


def _int8(tensor: Tensor) -> tuple[Tensor, Tensor] | None:
    """A matrix whose weights were rounded to int8 as integers and a scale for each row."""
    if tensor.dim() != 2 or tensor.dtype != torch.float32 or not tensor.numel():
        return None
    largest = tensor.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    scales = largest / 127
    whole = (tensor / scales).round()
    if ((whole * scales - tensor).abs() > EXACT * largest).any():
        return None
    return whole.to(torch.int8), scales.squeeze(1)


def session(content: bytes) -> Any:
    """Open the content of a file with onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def difference(function: Function, content: bytes, size: int) -> float:
    """The largest difference between what a file and the model compute, where sizes that vary are
    `size`, `size` + 1 and so on, or all 1."""
    opened = session(content)
    sizes = function.sizes(lambda number: 1 if size == 1 else size + number)
    examples = function.examples(sizes, seed=size)
    with plain_torch(function.module):
        expected = function.call(dict(examples))
    found = opened.run(list(expected), {name: x.numpy() for name, x in examples.items()})
    return max(
        _apart(torch.from_numpy(one).double(), other.double())
        for one, other in zip(found, expected.values(), strict=True)
    )


def _apart(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        return torch.inf
    apart = (found - expected).abs() / expected.abs().clamp(min=1)
    return float(apart.max()) if apart.numel() else 0.0
