"""Fixtures of the commands: a way to search without TensorFlow's graphs."""

from tests.decoding.conftest import eager as eager
