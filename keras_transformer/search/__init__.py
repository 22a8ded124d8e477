"""Beam search and sampling: one text for Keras, NumPy and exports. Only `step` knows the model."""
