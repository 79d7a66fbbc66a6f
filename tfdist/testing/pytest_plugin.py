"""The pytest fixture `fake_cluster`. Importing this module imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tfdist.testing.fake_cluster import FakeCluster
    from tfdist.testing.server_process import ServerProcess


@pytest.fixture(scope="session")
def fake_cluster_server() -> Iterator[ServerProcess]:
    """The process from which all workers of the session are forked."""
    from tfdist.testing.server_process import ServerProcess

    server = ServerProcess()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def fake_cluster(fake_cluster_server: ServerProcess) -> Iterator[FakeCluster]:
    """Runs functions and scripts in real local worker processes; see `FakeCluster`."""
    from tfdist.testing.fake_cluster import FakeCluster

    cluster = FakeCluster(fake_cluster_server)
    try:
        yield cluster
    finally:
        cluster.close()
