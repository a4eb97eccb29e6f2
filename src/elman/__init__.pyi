# Written by docs/generate.py: change the code, then run make docs.
from collections.abc import Callable

from elman.api import convert as convert
from elman.api import load as load
from elman.api import mix as mix
from elman.api import quality as quality
from elman.api import train_model as train_model
from elman.base.errors import ElmanError as ElmanError
from elman.base.errors import UsageError as UsageError
from elman.tasks.captioning.handle import Captioner as Captioner
from elman.tasks.classification.handle import Classifier as Classifier
from elman.tasks.conditional.handle import Conditional as Conditional
from elman.tasks.elmo.handle import Elmo as Elmo
from elman.tasks.language_model_handle import LM as LM
from elman.tasks.ngram.handle import NgramHandle as NgramHandle
from elman.tasks.tagging.handle import Tagger as Tagger
from elman.tasks.translation.handle import Translator as Translator

__version__: str

train_lm: Callable[..., LM]
train_window: Callable[..., LM]
train_maxent: Callable[..., LM]
train_ngram: Callable[..., NgramHandle]
train_snm: Callable[..., LM]
train_tagger: Callable[..., Tagger]
train_classifier: Callable[..., Classifier]
train_translator: Callable[..., Translator]
train_captioner: Callable[..., Captioner]
train_conditional: Callable[..., Conditional]
train_elmo: Callable[..., Elmo]
