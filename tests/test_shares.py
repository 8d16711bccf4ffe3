"""Random tests get a share of their examples in a short run, and all of them in a long one."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import FEWEST, PROFILE, SHARES, shared

ASKED = 60
seen = {"some": 0}


@settings(max_examples=ASKED)
@given(st.integers())
def test_a_random_test(number: int) -> None:
    seen["some"] += 1


def test_it_got_its_share() -> None:
    if not seen["some"]:
        pytest.skip("runs behind the test above")
    expected = ASKED * SHARES.get(PROFILE, 1.0)
    assert expected <= seen["some"] <= expected + 2  # Hypothesis may repeat one


@pytest.mark.parametrize(("asked", "got"), [(100, 25), (40, 10), (10, FEWEST), (3, 3)])
def test_shares(asked: int, got: int) -> None:
    assert shared(settings(max_examples=asked), "local").max_examples == got
    assert shared(settings(max_examples=asked), "full").max_examples == asked


def test_examples_do_not_depend_on_chance_or_speed() -> None:
    if PROFILE == "fuzz":
        pytest.skip("draws fresh examples")
    own = shared(settings(suppress_health_check=[HealthCheck.function_scoped_fixture]))
    assert own.derandomize
    assert own.print_blob
    assert own.deadline is None
    assert {HealthCheck.too_slow, HealthCheck.function_scoped_fixture} <= set(own.suppress_health_check)


@pytest.mark.parametrize("_", range(2))
def test_shared_generators_start_alike(_: int) -> None:
    seen.setdefault("number", number := random.randrange(1 << 40))
    assert seen["number"] == number
