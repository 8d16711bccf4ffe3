"""How often and how patiently to try again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spark_lance.errors import OptionError

__all__ = ["RetryPolicy"]


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
