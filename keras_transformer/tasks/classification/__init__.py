"""Classifies lines of text."""
