"""Retries with back-off, and hedged requests."""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar, cast

from spark_lance.errors import OptionError

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True)
class RetryPolicy:
    """Capped exponential back-off with jitter.

    Attributes:
        attempts: maximum number of attempts, at least 1.
        base_seconds: longest wait before the second attempt. It doubles with every further attempt.
        cap_seconds: longest wait before any attempt.
        total_seconds: no attempt starts later than this after the first one.
        hedge_seconds: a read without a response after this time is sent a second time; 0 means never.
    """

    attempts: int = 20
    base_seconds: float = 0.05
    cap_seconds: float = 5.0
    total_seconds: float = 1800.0
    hedge_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise OptionError(f"at least one attempt is needed, not {self.attempts}")
        if min(self.base_seconds, self.cap_seconds, self.total_seconds, self.hedge_seconds) < 0:
            raise OptionError("the times of a retry policy cannot be negative")

    @classmethod
    def of_requests(cls) -> RetryPolicy:
        """Return the policy for a single request to a store. It is short because other work waits for it."""
        return cls(attempts=11, base_seconds=0.1, cap_seconds=15.0, total_seconds=180.0)

    def delays(self, random: Callable[[], float]) -> Iterator[float]:
        """Yield the wait in seconds before each attempt after the first one.

        Each wait is uniformly random in the upper half of its range, so that writers that collided once do
        not collide again.

        Args:
            random: returns random numbers in [0, 1), like `random.random`.
        """
        span = self.base_seconds
        for _ in range(self.attempts - 1):
            span = min(span, self.cap_seconds)
            yield span * (0.5 + 0.5 * random())
            span *= 2


def run_with_retries(
    attempt: Callable[[], Result],
    policy: RetryPolicy,
    transient: Callable[[Exception], bool],
    doing: str = "a request",
) -> Result:
    """Return the result of the first attempt that succeeds.

    Args:
        attempt: the operation. It may run more than once, so it must be idempotent.
        policy: number of attempts and waits.
        transient: returns whether an error is worth a retry. Other errors, and the last one, are raised.
        doing: description for the log, without secrets.
    """
    start = time.monotonic()
    delays = chain(policy.delays(random.random), [None])
    for wait in delays:
        try:
            return attempt()
        except Exception as error:
            late = wait is not None and time.monotonic() + wait - start > policy.total_seconds
            if wait is None or late or not transient(error):
                raise
            # The driver's message is not logged: it may quote a signed URL.
            logger.info("%s failed (%s), next try in %.2f s", doing, type(error).__name__, wait)
            time.sleep(wait)
    raise AssertionError("unreachable")  # pragma: no cover


def hedged(
    request: Callable[[], Result],
    seconds: float,
    transient: Callable[[Exception], bool],
    doing: str = "a request",
) -> Result:
    """Return the first response to a request, which is sent a second time if it is slow.

    The slower request is not cancelled: it ends with its response or its connection's timeout.

    Args:
        request: a read-only request, so it may run twice at the same time.
        seconds: wait before the second request.
        transient: returns whether an error is transient. Any other error counts as a response.
        doing: description for the log, without secrets.
    """
    responses: queue.SimpleQueue[tuple[Result | None, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            responses.put((request(), None))
        except Exception as error:  # noqa: BLE001 (the caller raises it)
            responses.put((None, error))

    threading.Thread(target=run, name="lance-request").start()
    try:
        result, error = responses.get(timeout=seconds)
    except queue.Empty:
        logger.info("%s has no answer after %.2f s and is sent a second time", doing, seconds)
        threading.Thread(target=run, name="lance-hedge").start()
        result, error = responses.get()
        if error is not None and transient(error):
            result, error = responses.get()
    if error is not None:
        raise error
    return cast("Result", result)
