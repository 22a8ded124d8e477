"""Runs the commands of `python -m keras_transformer`."""
