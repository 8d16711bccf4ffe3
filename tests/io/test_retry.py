"""Back-off: growth, cap, jitter."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from spark_lance.errors import OptionError
from spark_lance.io.retry import RetryPolicy, hedged, run_with_retries


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


class Flaky:
    """Fails a number of times, then answers."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.failures = failures
        self.error = error
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "answer"


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let time pass only by sleeping."""
    waits: list[float] = []
    monkeypatch.setattr("spark_lance.io.retry.time.sleep", waits.append)
    monkeypatch.setattr("spark_lance.io.retry.time.monotonic", lambda: sum(waits))
    return waits


def test_what_passes_is_tried_again(sleeps: list[float]) -> None:
    flaky = Flaky(3, ConnectionError())
    assert run_with_retries(flaky, RetryPolicy(attempts=4), lambda error: True) == "answer"
    assert flaky.calls == 4
    assert len(sleeps) == 3
    assert sleeps == sorted(sleeps)


def test_attempts_are_bounded(sleeps: list[float]) -> None:
    flaky = Flaky(9, ConnectionError("the last one"))
    with pytest.raises(ConnectionError, match="the last one"):
        run_with_retries(flaky, RetryPolicy(attempts=4), lambda error: True)
    assert (flaky.calls, len(sleeps)) == (4, 3)


def test_the_time_of_attempts_is_bounded(sleeps: list[float]) -> None:
    policy = RetryPolicy(attempts=99, base_seconds=8, cap_seconds=8, total_seconds=20)
    with pytest.raises(ConnectionError):
        run_with_retries(Flaky(99, ConnectionError()), policy, lambda error: True)
    assert 8 < sum(sleeps) <= 20


def test_what_does_not_pass_is_raised_at_once(sleeps: list[float]) -> None:
    flaky = Flaky(1, PermissionError())
    with pytest.raises(PermissionError):
        run_with_retries(flaky, RetryPolicy(), lambda error: not isinstance(error, PermissionError))
    assert (flaky.calls, sleeps) == (1, [])


def test_the_log_does_not_quote_errors(sleeps: list[float], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        run_with_retries(
            Flaky(1, ConnectionError("?sig=s3cret")), RetryPolicy(), lambda error: True, "reading x"
        )
    assert "reading x failed (ConnectionError)" in caplog.text
    assert "s3cret" not in caplog.text


class InTurns:
    """Requests that run one after the other: the first one waits until the second one has ended."""

    def __init__(self, first: Callable[[], str], second: Callable[[], str]) -> None:
        self.requests = [first, second]
        self.second_ended = threading.Event()

    def __call__(self) -> str:
        request = self.requests.pop(0)
        if self.requests:
            assert self.second_ended.wait(30)
            return request()
        try:
            return request()
        finally:
            # The answer of the second request is in the queue before that of the first one.
            threading.Timer(0.05, self.second_ended.set).start()


def _fail(error: Exception) -> Callable[[], str]:
    def request() -> str:
        raise error

    return request


def _is_connection(error: Exception) -> bool:
    return isinstance(error, ConnectionError)


def test_the_first_of_two_answers_counts() -> None:
    one, two = (lambda: "first"), (lambda: "second")
    assert hedged(one, 30, _is_connection) == "first"
    assert hedged(InTurns(one, two), 0.01, _is_connection) == "second"
    assert hedged(InTurns(one, _fail(ConnectionError())), 0.01, _is_connection) == "first"
    with pytest.raises(FileNotFoundError):
        hedged(InTurns(one, _fail(FileNotFoundError())), 0.01, _is_connection)
    with pytest.raises(TimeoutError):
        hedged(InTurns(_fail(TimeoutError()), _fail(ConnectionError())), 0.01, _is_connection)
