"""Export of a trained run to SavedModel, ONNX and TFLite: not written yet."""
