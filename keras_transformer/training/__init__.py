"""Trains a run: settings, data, the rounds of `fit`, checkpoints, and the model that the run ends with."""
