"""Describes what a model is and how it searches, as plain data: options, parts, arguments, presets. No Keras here."""
