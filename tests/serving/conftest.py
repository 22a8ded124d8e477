"""What several tests of the doors share: a host of engines that answer at once, and its client."""

import pytest

from tests.serving.doors import a_client, a_host


@pytest.fixture
def host():
    return a_host()


@pytest.fixture
def client(host):
    return a_client(host)
