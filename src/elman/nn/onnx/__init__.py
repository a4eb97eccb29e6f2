"""Networks as ONNX graphs: `tracing.py` records what a function computes, `operators.py` says how
ONNX writes each operation, `files.py` writes files and checks them with onnxruntime.

onnx and onnxruntime are imported when they are used (the extra `onnx`).
"""
