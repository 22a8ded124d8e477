"""Serves models over HTTP."""
