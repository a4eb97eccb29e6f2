"""Names of the files that training writes into a run folder; this module imports nothing heavy."""

MODEL_FILE = "model.safetensors"
METRICS_FILE = "metrics.jsonl"
STATE_FILE = "train/state.safetensors"
