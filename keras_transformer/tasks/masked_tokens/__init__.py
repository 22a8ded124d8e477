"""Fills masked places of text."""
