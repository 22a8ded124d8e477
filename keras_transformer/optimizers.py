"""Optimizers: `Adam` with the paper's constants."""

from keras_transformer.training.optimizers import Adam as Adam

__all__ = ["Adam"]
