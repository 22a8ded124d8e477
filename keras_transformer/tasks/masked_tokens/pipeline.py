"""From text to masked pieces and to vectors: a classifier without labels, see `classification.pipeline`."""

from keras_transformer.tasks.classification.pipeline import imported as imported
from keras_transformer.tasks.classification.pipeline import load as load
