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

from keras_transformer.lazy import lazy_names
from keras_transformer.machine import keep_memory
from keras_transformer.version import __version__ as __version__

if TYPE_CHECKING:
    from keras_transformer.decoding.pipelines import PieceVectors as PieceVectors
    from keras_transformer.decoding.pipelines import load_piece_vectors as load_piece_vectors
    from keras_transformer.importing.huggingface import import_huggingface as import_huggingface
    from keras_transformer.models.classifiers import Encoder as Encoder
    from keras_transformer.models.classifiers import ImageClassifier as ImageClassifier
    from keras_transformer.models.stack_models import LanguageModel as LanguageModel
    from keras_transformer.models.stack_models import SequenceEncoder as SequenceEncoder
    from keras_transformer.models.transformer import Transformer as Transformer
    from keras_transformer.options import Option as Option
    from keras_transformer.own_parts import register_part as register_part
    from keras_transformer.tasks.classification.pipeline import Classifier as Classifier
    from keras_transformer.tasks.classification.pipeline import load_classifier as load_classifier
    from keras_transformer.tasks.images.pipeline import Recognizer as Recognizer
    from keras_transformer.tasks.images.pipeline import load_recognizer as load_recognizer
    from keras_transformer.tasks.language_modelling.pipeline import Generator as Generator
    from keras_transformer.tasks.language_modelling.pipeline import load_generator as load_generator
    from keras_transformer.tasks.next_item.pipeline import Recommender as Recommender
    from keras_transformer.tasks.next_item.pipeline import load_recommender as load_recommender
    from keras_transformer.tasks.translation.ensembles import load_ensemble as load_ensemble
    from keras_transformer.tasks.translation.pipeline import Translator as Translator
    from keras_transformer.tasks.translation.pipeline import load as load
    from keras_transformer.text.datasets import datasets_from_files as datasets_from_files
    from keras_transformer.text.tokenizer import Tokenizer as Tokenizer

_HOMES = {
    "Classifier": "keras_transformer.tasks.classification.pipeline",
    "Encoder": "keras_transformer.models.classifiers",
    "Generator": "keras_transformer.tasks.language_modelling.pipeline",
    "ImageClassifier": "keras_transformer.models.classifiers",
    "LanguageModel": "keras_transformer.models.stack_models",
    "PieceVectors": "keras_transformer.decoding.pipelines",
    "Recommender": "keras_transformer.tasks.next_item.pipeline",
    "SequenceEncoder": "keras_transformer.models.stack_models",
    "Recognizer": "keras_transformer.tasks.images.pipeline",
    "Tokenizer": "keras_transformer.text.tokenizer",
    "Transformer": "keras_transformer.models.transformer",
    "Translator": "keras_transformer.tasks.translation.pipeline",
    "datasets_from_files": "keras_transformer.text.datasets",
    "import_huggingface": "keras_transformer.importing.huggingface",
    "layers": "keras_transformer.layers",
    "load": "keras_transformer.tasks.translation.pipeline",
    "load_classifier": "keras_transformer.tasks.classification.pipeline",
    "load_ensemble": "keras_transformer.tasks.translation.ensembles",
    "load_generator": "keras_transformer.tasks.language_modelling.pipeline",
    "load_piece_vectors": "keras_transformer.decoding.pipelines",
    "load_recommender": "keras_transformer.tasks.next_item.pipeline",
    "load_recognizer": "keras_transformer.tasks.images.pipeline",
    "losses": "keras_transformer.losses",
    "metrics": "keras_transformer.metrics",
    "models": "keras_transformer.models",
    "Option": "keras_transformer.options",
    "optimizers": "keras_transformer.optimizers",
    "plots": "keras_transformer.plots",
    "register_part": "keras_transformer.own_parts",
    "schedules": "keras_transformer.schedules",
}
__all__ = [
    "Classifier", "Encoder", "Generator", "ImageClassifier", "LanguageModel", "Option", "PieceVectors", "Recognizer",
    "Recommender", "SequenceEncoder", "Tokenizer", "Transformer", "Translator", "datasets_from_files",
    "import_huggingface", "load", "load_classifier", "load_ensemble", "load_generator", "load_piece_vectors",
    "load_recognizer", "load_recommender", "register_part",
]  # fmt: skip
keep_memory()  # before TensorFlow allocates
if not TYPE_CHECKING:  # a type checker would take any name for one of these
    __getattr__, __dir__ = lazy_names(
        __name__, _HOMES, without_keras=("Option", "Tokenizer", "Translator", "load", "plots")
    )
