"""Reads models in Hugging Face's format."""
