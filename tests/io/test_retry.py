"""Back-off: growth, cap, jitter."""

from __future__ import annotations

import random

import pytest

from spark_lance.errors import OptionError
from spark_lance.io.retry import RetryPolicy


def test_waits_double_up_to_the_cap() -> None:
    policy = RetryPolicy(attempts=6, base_seconds=1, cap_seconds=5)
    assert list(policy.delays(lambda: 1.0)) == [1, 2, 4, 5, 5]
    assert list(policy.delays(lambda: 0.0)) == [0.5, 1, 2, 2.5, 2.5]


def test_waits_differ_between_writers() -> None:
    policy = RetryPolicy()
    one, two = (list(policy.delays(random.Random(seed).random)) for seed in (1, 2))
    assert len(one) == policy.attempts - 1
    assert all(a != b for a, b in zip(one, two, strict=True))
    assert all(0 < wait <= policy.cap_seconds for wait in one)


def test_one_attempt_never_waits() -> None:
    assert list(RetryPolicy(attempts=1).delays(random.random)) == []


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"base_seconds": -1}, {"total_seconds": -1}])
def test_policies_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(OptionError):
        RetryPolicy(**wrong)
