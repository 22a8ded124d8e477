"""How answers are found: one text for Keras, NumPy and exports. Only `step` knows the model."""
