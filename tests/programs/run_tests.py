"""Runs tests with pytest's arguments, in a process of its own backend."""

import sys

import pytest

sys.exit(pytest.main(["-x", "-p", "no:cacheprovider", *sys.argv[1:]]))
