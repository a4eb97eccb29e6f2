"""Models, one file each, and the table that names them.

The table's entries are the config classes. A network's config builds its model with `build`; an
n-gram model is counted, not trained (`recipes/ngram.py`), and read with `ngram.load_ngram`.
"""

from elman.base.tables import Table

MODELS: Table = {
    "recurrent": "elman.models.recurrent:RecurrentLMConfig",
    "window": "elman.models.window:WindowLMConfig",
    "maxent": "elman.models.maxent:MaxEntLMConfig",
    "sequence_to_sequence": "elman.models.sequence_to_sequence:SequenceToSequenceConfig",
    "conditional": "elman.models.conditional:ConditionalLMConfig",
    "captioner": "elman.models.captioner:CaptionerConfig",
    "elmo": "elman.models.elmo:ElmoConfig",
    "ngram": "elman.ngrams.config:NgramConfig",
    "snm": "elman.ngrams.config:SNMConfig",
    "tagger": "elman.models.tagger:TaggerConfig",
    "classifier": "elman.models.classifier:ClassifierConfig",
}
