"""What a model is and how it searches, as plain data: options, parts, arguments, presets. Keras is not imported."""
