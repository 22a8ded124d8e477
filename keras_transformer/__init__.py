"""The Transformer of "Attention Is All You Need" in Keras 3: training, search, and export.

>>> import keras_transformer
>>> translator = keras_transformer.load("runs/numbers-en-de-auto")
>>> translator.translate(["twenty-one"])
['einundzwanzig']

After `import keras_transformer.models`, `keras.saving.load_model` reads every model made of this package's layers,
losses, metrics, optimizers and schedules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_transformer.core.lazy import lazy_names
from keras_transformer.core.machine import keep_memory, send_nothing
from keras_transformer.core.version import __version__ as __version__

if TYPE_CHECKING:
    from keras_transformer.decoding.pipelines import PieceVectors, load_piece_vectors
    from keras_transformer.importing.huggingface import import_huggingface
    from keras_transformer.models.classifiers import Encoder, ImageClassifier
    from keras_transformer.models.stack_models import LanguageModel, SequenceEncoder
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.spec.custom_parts import register_part
    from keras_transformer.spec.options import Option
    from keras_transformer.tasks.classification.pipeline import Classifier, load_classifier
    from keras_transformer.tasks.images.pipeline import Recognizer, load_recognizer
    from keras_transformer.tasks.language_modelling.pipeline import Generator, load_generator
    from keras_transformer.tasks.next_item.pipeline import Recommender, load_recommender
    from keras_transformer.tasks.translation.loading import load, load_ensemble
    from keras_transformer.tasks.translation.pipeline import Translator
    from keras_transformer.text.datasets import datasets_from_files
    from keras_transformer.text.tokenizer import Tokenizer

# The names of each module, which `__all__` has, and the modules that are names of this package.
_NAMES = {
    "decoding.pipelines": ["PieceVectors", "load_piece_vectors"],
    "importing.huggingface": ["import_huggingface"],
    "models.classifiers": ["Encoder", "ImageClassifier"],
    "models.stack_models": ["LanguageModel", "SequenceEncoder"],
    "models.transformer": ["Transformer"],
    "spec.options": ["Option"],
    "spec.custom_parts": ["register_part"],
    "tasks.classification.pipeline": ["Classifier", "load_classifier"],
    "tasks.images.pipeline": ["Recognizer", "load_recognizer"],
    "tasks.language_modelling.pipeline": ["Generator", "load_generator"],
    "tasks.next_item.pipeline": ["Recommender", "load_recommender"],
    "tasks.translation.loading": ["load", "load_ensemble"],
    "tasks.translation.pipeline": ["Translator"],
    "text.datasets": ["datasets_from_files"],
    "text.tokenizer": ["Tokenizer"],
}
_ANSWERING = (
    "Classifier", "Generator", "Recognizer", "Recommender", "Translator",
    "load", "load_classifier", "load_generator", "load_recognizer", "load_recommender",
)  # fmt: skip
_MODULES = ["layers", "losses", "metrics", "models", "optimizers", "plots", "schedules", "serving"]
keep_memory()  # before TensorFlow allocates
send_nothing()  # before ONNX Runtime is imported
if not TYPE_CHECKING:  # a type checker would take any name for one of these
    __getattr__, __dir__, __all__ = lazy_names(
        __name__, _NAMES, _MODULES, without_keras=(*_ANSWERING, "Option", "Tokenizer", "plots", "serving")
    )
