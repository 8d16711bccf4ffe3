"""Processes of both implementations change one table on a real server at once; nothing is lost."""

from __future__ import annotations

import uuid

import pytest

from tests.stores.services import Service
from tests.table.commits.test_race import check, race

pytestmark = [
    pytest.mark.stores,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_many_writers(service: Service) -> None:
    other = "pylance" if service.has_pylance else "ours"
    uri = service.uri(uuid.uuid4().hex)
    reports = race(uri, ["ours", other, "ours", other], 12, options=service.options)
    seen = check(uri, reports, service.options, service.has_pylance)
    assert sum(seen.values()) - seen["rebased"] >= 36
    assert min(seen[name] for name in ("append", "delete", "update")) > 0
    lost = sum(report["lost"] for report in reports)
    assert seen["rebased"] + lost > 0, "nobody collided, so nothing was tested"
