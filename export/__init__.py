"""Exports a trained run as SavedModel, ONNX and TFLite translators, and certifies that they translate as the model."""
