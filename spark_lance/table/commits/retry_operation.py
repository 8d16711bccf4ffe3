"""Run an operation again, from the newest version, if its input has changed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TypeVar

from spark_lance.errors import RetryableConflictError
from spark_lance.io.retry import RetryPolicy
from spark_lance.table.commits.commit import SYSTEM_ENV, CommitEnv
from spark_lance.table.commits.commit_options import current_options
from spark_lance.table.format.features import check_writable
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.versions import load_latest

CONFLICT_RETRIES = RetryPolicy(attempts=10)

Result = TypeVar("Result")


def retry_policy() -> RetryPolicy:
    """Return how often and how patiently to run again, if the user of `commit_options` has a say in it."""
    said = current_options().retry
    return CONFLICT_RETRIES if said == RetryPolicy() else said


def retry_operation(
    snapshot: Snapshot,
    attempt: Callable[[Snapshot], Result],
    policy: RetryPolicy = CONFLICT_RETRIES,
    env: CommitEnv = SYSTEM_ENV,
) -> Result:
    """Return the result of an attempt on a version; after each conflict, try again on the newest version.

    Args:
        snapshot: the version that the first attempt is computed from.
        attempt: computes the operation from a version and commits it; it leaves nothing behind if it fails.
        policy: how often and how patiently to try again.
        env: clock, sleep and random numbers.

    Raises:
        RetryableConflictError: other writers were in the way each time.
        UnsupportedFormatError: the table needs a feature that is not written here.
    """
    deadline = env.monotonic() + policy.total_seconds
    for wait in chain([None], policy.delays(env.random)):
        if wait is not None:
            if env.monotonic() + wait > deadline:
                break
            env.sleep(wait)
            snapshot = snapshot.at(load_latest(snapshot.table))
        manifest = snapshot.manifest
        check_writable(manifest.message, manifest.path, manifest.facts)
        try:
            return attempt(snapshot)
        except RetryableConflictError as error:
            conflict = error
    raise conflict
