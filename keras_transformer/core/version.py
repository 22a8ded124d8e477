"""Holds the version of this package, which every run names as its writer."""

__version__ = "0.3.0"
