"""The version of this package, which every run says it was written by."""

__version__ = "0.2.0"
