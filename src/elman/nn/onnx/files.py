"""Write a recorded function as an ONNX file, and check it with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from elman.base.errors import ElmanError
from elman.nn.onnx.tracing import OPSET, Function, Graph, record

TOLERANCE = 1e-5
"""How far the numbers of the file and of the model may be apart."""
INT8_LIMIT = 127


def model_bytes(
    function: Function, metadata: Mapping[str, str], *, int8: bool = False, name: str = "elman"
) -> bytes:
    """A function as the content of an ONNX file, with weights of one byte if `int8`."""
    from onnx import helper, numpy_helper

    graph, inputs, outputs = record(function)
    tensors, restored = [], []
    for key, tensor in graph.initializers.items():
        if int8 and tensor.dim() == 2 and tensor.dtype == torch.float32 and tensor.numel() > 64:
            scales = tensor.abs().amax(dim=1).div(127).clamp(min=torch.finfo(torch.float32).tiny)
            whole = (tensor / scales.unsqueeze(1)).round().to(torch.int8)
            tensors += [
                numpy_helper.from_array(whole.numpy(), f"{key}:int8"),
                numpy_helper.from_array(scales.numpy(), f"{key}:scale"),
            ]
            parts = [f"{key}:int8", f"{key}:scale"]
            restored.append(helper.make_node("DequantizeLinear", parts, [key], name=key, axis=0))
        else:
            tensors.append(numpy_helper.from_array(tensor.contiguous().numpy(), key))
    proto = helper.make_model(
        helper.make_graph([*restored, *graph.nodes], name, inputs, outputs, tensors),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
        producer_name="elman",
    )
    helper.set_model_props(proto, dict(metadata))
    content: bytes = proto.SerializeToString()
    return content


def session(content: bytes | str) -> Any:
    """Open the content of a file, or a file, with onnxruntime, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def difference(function: Function, content: bytes, sizes: int = 2) -> float:
    """The largest difference between what a file and the model compute, at sizes that differ from
    those that were recorded."""
    opened = session(content)
    examples = function.examples(function.sizes(lambda number: sizes + number), seed=sizes)
    with torch.no_grad():
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
