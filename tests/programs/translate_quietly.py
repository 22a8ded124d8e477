"""`translate_quietly.py RUN`: translates a line by Python."""

import sys

import keras_transformer

print(keras_transformer.load(sys.argv[1]).translate("to the sea", max_length=9))
