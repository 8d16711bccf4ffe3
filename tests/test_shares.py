"""Random tests get a share of their examples in a short run, and all of them in a long one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
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
    wanted = ASKED * SHARES.get(PROFILE, 1.0)
    assert wanted <= seen["some"] <= wanted + 2  # Hypothesis may repeat one


@pytest.mark.parametrize(("asked", "got"), [(100, 25), (40, 10), (10, FEWEST), (3, 3)])
def test_shares(asked: int, got: int) -> None:
    assert shared(settings(max_examples=asked), "ci").max_examples == got
    assert shared(settings(max_examples=asked), "full").max_examples == asked
