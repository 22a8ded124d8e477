"""Looks for sentences in lines of one, which takes no rules."""

import sys

from keras_transformer.text.boundaries import sentences_in

sentences_in("A man is sleeping.", "en")
sentences_in("A man in a 3-piece suit", "de")
assert "choppa" not in sys.modules
