"""Layers of the Transformer, in `keras.ops` alone: they run on the TensorFlow, JAX and PyTorch backends."""
