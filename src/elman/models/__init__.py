"""Models that several tasks share, and the table of models by kind.

The table's entries are config classes; a network's config builds its model with `build`.
"""

from elman.base.tables import Table

MODELS: Table = {
    "recurrent": "elman.models.recurrent:RecurrentLMConfig",
    "window": "elman.tasks.language_model.window:WindowLMConfig",
    "maxent": "elman.tasks.language_model.maxent:MaxEntLMConfig",
    "sequence_to_sequence": "elman.tasks.translation.model:SequenceToSequenceConfig",
    "conditional": "elman.tasks.conditional.model:ConditionalLMConfig",
    "captioner": "elman.tasks.captioning.model:CaptionerConfig",
    "elmo": "elman.tasks.elmo.model:ElmoConfig",
    "ngram": "elman.tasks.ngram.settings:NgramConfig",
    "snm": "elman.tasks.snm.settings:SNMConfig",
    "tagger": "elman.tasks.tagging.model:TaggerConfig",
    "classifier": "elman.tasks.classification.model:ClassifierConfig",
}
