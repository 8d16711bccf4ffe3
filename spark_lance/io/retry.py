"""How often and how patiently to try again."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

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
    """

    attempts: int = 20
    base_seconds: float = 0.05
    cap_seconds: float = 5.0
    total_seconds: float = 1800.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise OptionError(f"at least one attempt is needed, not {self.attempts}")
        if min(self.base_seconds, self.cap_seconds, self.total_seconds) < 0:
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
