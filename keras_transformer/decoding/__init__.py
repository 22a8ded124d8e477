"""Answers by a model: the engines that run it (Keras, ONNX Runtime, processes), and what a user holds of a run."""
