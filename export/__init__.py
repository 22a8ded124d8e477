"""Exports a trained run for TensorFlow, ONNX Runtime, LiteRT and CTranslate2, and certifies that it answers alike."""
