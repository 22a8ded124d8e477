"""Classifies images."""
