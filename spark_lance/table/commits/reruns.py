"""Running an operation again, from the newest version, when what it was computed from has changed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TypeVar

from spark_lance.errors import RetryableConflictError
from spark_lance.io.retry import RetryPolicy
from spark_lance.table.commits.commit import REAL, Surroundings
from spark_lance.table.commits.commit_options import current_options
from spark_lance.table.features import check_writable
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.versions import load_latest

__all__ = ["RERUNS", "rerun", "rerun_policy"]

RERUNS = RetryPolicy(attempts=10)

Result = TypeVar("Result")


def rerun_policy() -> RetryPolicy:
    """Return how often and how patiently to run again, if the user of `commit_options` has a say in it."""
    said = current_options().retry
    return RERUNS if said == RetryPolicy() else said


def rerun(
    snapshot: Snapshot,
    attempt: Callable[[Snapshot], Result],
    policy: RetryPolicy = RERUNS,
    surroundings: Surroundings = REAL,
) -> Result:
    """Return what an attempt on a version gives, or one on the newest version after each conflict.

    Args:
        snapshot: the version that the first attempt is computed from.
        attempt: computes the operation from a version and commits it; it leaves nothing behind if it fails.
        policy: how often and how patiently to try again.
        surroundings: clock, sleep and random numbers.

    Raises:
        RetryableConflictError: other writers were in the way each time.
        UnsupportedFormatError: the table needs a feature that is not written here.
    """
    deadline = surroundings.monotonic() + policy.total_seconds
    for wait in chain([None], policy.delays(surroundings.random)):
        if wait is not None:
            if surroundings.monotonic() + wait > deadline:
                break
            surroundings.sleep(wait)
            snapshot = snapshot.at(load_latest(snapshot.store, snapshot.root))
        check_writable(snapshot.manifest.message, snapshot.manifest.path)
        try:
            return attempt(snapshot)
        except RetryableConflictError as error:
            conflict = error
    raise conflict
