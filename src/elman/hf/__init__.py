"""Elman's models in Hugging Face's transformers: `import elman.hf` registers their classes.

Afterwards `AutoModelForCausalLM.from_pretrained(DIR)` and `pipeline("text-generation", DIR)` read
the folders that `elman convert RUN DIR --to hf` writes. No code is read from a folder.
"""

from __future__ import annotations

from elman.base.errors import ElmanError

try:
    import transformers
except ImportError as missing:
    raise ElmanError("elman.hf needs transformers", "pip install 'elman[hf]'") from missing

from elman.hf.causal import ElmanForCausalLM, RecurrentCache
from elman.hf.configuration import ElmanConfig
from elman.hf.labelling import ElmanForSequenceClassification, ElmanForTokenClassification

__all__ = [
    "ElmanConfig",
    "ElmanForCausalLM",
    "ElmanForSequenceClassification",
    "ElmanForTokenClassification",
    "RecurrentCache",
]

transformers.AutoConfig.register(ElmanConfig.model_type, ElmanConfig, exist_ok=True)
transformers.AutoModelForCausalLM.register(ElmanConfig, ElmanForCausalLM, exist_ok=True)
transformers.AutoModelForSequenceClassification.register(
    ElmanConfig, ElmanForSequenceClassification, exist_ok=True
)
transformers.AutoModelForTokenClassification.register(
    ElmanConfig, ElmanForTokenClassification, exist_ok=True
)
