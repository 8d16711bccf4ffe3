"""Set options for all commits in a `with` block.

    with commit_options(message="nightly load", retry=RetryPolicy(attempts=100)):
        dataset.delete("day < '2020-01-01'")
        spark_lance.write_dataset(rows, uri, mode="append")

Commits of other threads and tasks do not get the options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from spark_lance.errors import OptionTypeError
from spark_lance.io.retry import RetryPolicy

# The transaction property with the user's message about a commit.
COMMIT_MESSAGE = "__lance_commit_message"
# The transaction properties with the user and the Spark application of a commit; Iceberg's names.
USER, APPLICATION, APPLICATION_NAME = "user.name", "spark.app.id", "spark.app.name"
# The transaction property with the statement, if it does not follow from the operation: "MERGE", "WRITE".
STATEMENT = "spark_lance.statement"


@dataclass(frozen=True)
class CommitOptions:
    """The retry policy of commits, and the properties stored with their transactions.

    Attributes:
        retry: how often, and for how long, to retry after other writers committed first.
        properties: key-value pairs stored with every transaction.
        origin: returns additional pairs when a transaction is created; `properties` overrides them.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    properties: Mapping[str, str] = field(default_factory=dict)
    origin: Callable[[], Mapping[str, str]] = dict

    def transaction_properties(self, own: Mapping[str, str] | None) -> dict[str, str]:
        """Return the properties of a transaction: the pairs of these options, overridden by `own`."""
        return {**self.origin(), **self.properties, **(own or {})}


_current: ContextVar[CommitOptions] = ContextVar("commit_options", default=CommitOptions())  # noqa: B039


def current_options() -> CommitOptions:
    """Return the commit options of this thread or task."""
    return _current.get()


@contextmanager
def commit_options(
    *,
    retry: RetryPolicy | None = None,
    message: str | None = None,
    properties: Mapping[str, str] | None = None,
    origin: Callable[[], Mapping[str, str]] | None = None,
) -> Iterator[None]:
    """Set options for all commits of this thread or task inside the `with` block.

    Blocks can be nested: an inner block keeps the options of the outer one that it does not set.

    Args:
        retry: how often, and for how long, to retry after other writers committed first. It applies to
            commits that are only renumbered or merged. Running a delete or an update again has its own
            limits.
        message: the reason for the commit, for readers of the history.
        properties: key-value pairs stored with the transactions.
        origin: see `CommitOptions`.
    """
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise OptionTypeError(f"retry is a RetryPolicy, as in RetryPolicy(attempts=50), not {retry!r}")
    outer = _current.get()
    message_property = {} if message is None else {COMMIT_MESSAGE: message}
    merged = {**outer.properties, **(properties or {}), **message_property}
    inner = CommitOptions(retry or outer.retry, merged, origin or outer.origin)
    token = _current.set(inner)
    try:
        yield
    finally:
        _current.reset(token)
