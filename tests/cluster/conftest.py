"""A standalone cluster for all tests of this folder, and a driver that most of them use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.driver import Driver
from tests.cluster.standalone import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers; logs are in its folder."""
    with Cluster(tmp_path_factory.mktemp("cluster")).running() as running:
        yield running


@pytest.fixture(scope="session")
def new_driver(cluster: Cluster) -> Iterator[Callable[[str], Driver]]:
    """Makes drivers, which end with the tests."""
    with ExitStack() as drivers:
        yield lambda name: drivers.enter_context(Driver(name, cluster.url, cluster.folder).running())


@pytest.fixture(scope="session")
def driver(new_driver: Callable[[str], Driver]) -> Driver:
    """The driver of the tests that do not kill it."""
    return new_driver("driver")


@pytest.fixture(scope="session")
def _second_drivers() -> list[Driver]:
    return []


@pytest.fixture
def second(new_driver: Callable[[str], Driver], _second_drivers: list[Driver]) -> Driver:
    """Another driver, which a test may kill."""
    if not _second_drivers or _second_drivers[-1].killed:
        _second_drivers.append(new_driver(f"second-{len(_second_drivers)}"))
    return _second_drivers[-1]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a table may be made."""
    return str(tmp_path / "t.lance")


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """A folder in which tasks leave word of how far they got."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder
