"""The bridge of Java's questions, imported with the first of them: whoever asks nothing waits for nothing."""

from __future__ import annotations

from typing import Any

__all__ = ["LateBridge"]


class LateBridge:
    """A `java.util.function.BiFunction` that answers as `bridge.Bridge` does.

    Args:
        spark: a classic session.
    """

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def apply(self, question: str, subject: Any) -> str:
        """Answer a question; see `Bridge.apply`."""
        from spark_lance.spark.sql.bridge import Bridge

        return Bridge(self._spark).apply(question, subject)

    class Java:  # noqa: D106 (py4j reads it)
        implements = ("java.util.function.BiFunction",)
