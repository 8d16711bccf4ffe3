"""How often and how patiently to try again."""

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
        attempts: how many times to try in all, at least 1.
        base_seconds: longest wait before the second try; it doubles with every further one.
        cap_seconds: longest wait before any try.
        total_seconds: no try is started after this time since the first one.
        hedge_seconds: a read without an answer after this time is sent a second time; 0 is never.
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
        """Return the patience with a single request to a store: other work waits for it."""
        return cls(attempts=11, base_seconds=0.1, cap_seconds=15.0, total_seconds=180.0)

    def delays(self, random: Callable[[], float]) -> Iterator[float]:
        """Yield the wait in seconds before every try after the first one.

        Each wait is drawn evenly from the upper half of its span, so that writers that collided once do not
        collide again at the same pace.

        Args:
            random: draws from [0, 1), as `random.random`.
        """
        span = self.base_seconds
        for _ in range(self.attempts - 1):
            span = min(span, self.cap_seconds)
            yield span * (0.5 + 0.5 * random())
            span *= 2


def retried(
    attempt: Callable[[], Result],
    policy: RetryPolicy,
    transient: Callable[[Exception], bool],
    doing: str = "a request",
) -> Result:
    """Return the result of the first attempt that does not fail.

    Args:
        attempt: may run more than once, so it must not matter if an earlier one went through unnoticed.
        policy: how often and how patiently.
        transient: whether an error may pass by itself; any other one is raised at once, and so is the last.
        doing: for the log; must not hold secrets.
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
            # The error's text is the driver's and is not logged: it may quote a signed URL.
            logger.info("%s failed (%s), next try in %.2f s", doing, type(error).__name__, wait)
            time.sleep(wait)
    raise AssertionError("unreachable")  # pragma: no cover


def hedged(
    request: Callable[[], Result],
    seconds: float,
    transient: Callable[[Exception], bool],
    doing: str = "a request",
) -> Result:
    """Return the first answer to a request that is sent a second time if it has none after some seconds.

    The other request ends by itself: by its answer, or by the timeout of its connection.

    Args:
        request: changes nothing, so it may run twice at the same time.
        seconds: how long to wait before the second request.
        transient: whether an error may pass by itself. Any other error is an answer.
        doing: for the log; must not hold secrets.
    """
    answers: queue.SimpleQueue[tuple[Result | None, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((request(), None))
        except Exception as error:  # noqa: BLE001 (the caller raises it)
            answers.put((None, error))

    threading.Thread(target=run, name="lance-request").start()
    try:
        result, error = answers.get(timeout=seconds)
    except queue.Empty:
        logger.info("%s has no answer after %.2f s and is sent a second time", doing, seconds)
        threading.Thread(target=run, name="lance-hedge").start()
        result, error = answers.get()
        if error is not None and transient(error):
            result, error = answers.get()
    if error is not None:
        raise error
    return cast("Result", result)
