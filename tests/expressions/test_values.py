"""Times as text, alike on every Python."""

from __future__ import annotations

import datetime
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.expressions.values import parse_moment

UTC = datetime.timezone.utc


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-02", datetime.datetime(2024, 1, 2)),
        ("2024-01-02 03", datetime.datetime(2024, 1, 2, 3)),
        ("2024-01-02T03:04", datetime.datetime(2024, 1, 2, 3, 4)),
        (" 2024-01-02 03:04:05 ", datetime.datetime(2024, 1, 2, 3, 4, 5)),
        ("2024-01-02 03:04:05.6", datetime.datetime(2024, 1, 2, 3, 4, 5, 600_000)),
        ("2024-01-02 03:04:05,678901234", datetime.datetime(2024, 1, 2, 3, 4, 5, 678_901)),
        ("2024-01-02 03:04:05Z", datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2024-01-02T03:04:05.5z", datetime.datetime(2024, 1, 2, 3, 4, 5, 500_000, UTC)),
        ("2024-01-02 03:04:05+01:30", datetime.datetime(2024, 1, 2, 1, 34, 5, tzinfo=UTC)),
        ("2024-01-02 03:04:05-0130", datetime.datetime(2024, 1, 2, 4, 34, 5, tzinfo=UTC)),
        ("2024-01-02 03:04+01", datetime.datetime(2024, 1, 2, 2, 4, tzinfo=UTC)),
    ],
)
def test_forms(text: str, expected: datetime.datetime) -> None:
    assert parse_moment(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "2024-13-01",
        "2024-02-30 01:00",
        "2024-01-02 25:00",
        "2024-01-02 03:04:05+25:00",
        "2024-01-02Z",
    ],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError):
        parse_moment(text)


@given(
    st.datetimes(timezones=st.sampled_from([None, UTC, datetime.timezone(datetime.timedelta(hours=-9.5))]))
)
def test_what_python_writes(moment: datetime.datetime) -> None:
    assert parse_moment(moment.isoformat()) == moment
    if sys.version_info >= (3, 11):
        assert parse_moment(moment.isoformat()) == datetime.datetime.fromisoformat(moment.isoformat())
