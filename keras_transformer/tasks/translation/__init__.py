"""Translates, from parallel text."""
