"""A trained run as SavedModel, ONNX and TFLite translators, proved to translate as the model does."""
