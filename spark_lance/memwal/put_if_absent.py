"""Putting an object only if it is absent, until it is certain what became of it."""

from __future__ import annotations

import random
import time

from spark_lance.errors import AtomicPutUnsupportedError, CommitOutcomeUnknownError, StoreAccessError
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.store import Store

# The same bytes are put again after an answer was lost, so another try does no harm.
PUT_RETRIES = RetryPolicy(attempts=6, base_seconds=0.1, cap_seconds=2.0, total_seconds=30.0)


def put_new(
    store: Store,
    path: str,
    data: bytes,
    *,
    unique: bool,
    sync: bool = False,
    retry: RetryPolicy = PUT_RETRIES,
) -> bool:
    """Create an object if nothing is there, and return whether it is ours.

    Args:
        store: where.
        path: the object.
        data: its bytes.
        unique: whether nobody else can write these very bytes there, so that finding them means that an
            earlier request of ours went through.
        sync: force it to the disk, where the store is one.
        retry: how often the same request is sent again after an answer was lost.

    Raises:
        CommitOutcomeUnknownError: the store did not say, and the object may come into being later.
        StoreAccessError, AtomicPutUnsupportedError: nothing was written.
    """
    unconfirmed_error: OSError | None = None
    for wait in (0.0, *retry.delays(random.random)):
        if wait:
            time.sleep(wait)
        try:
            store.put_if_absent(path, data, sync=sync)
        except (AtomicPutUnsupportedError, StoreAccessError):
            raise
        except FileExistsError:
            try:
                return unique and store.read(path) == data
            except OSError as error:
                if not unique:
                    return False
                unconfirmed_error = error
        except OSError as error:
            unconfirmed_error = error
            if store.is_local:
                break  # a disk that is full or gone does not come back in a second
        else:
            return True
    raise CommitOutcomeUnknownError(
        f"the store did not say whether {path} was written: {unconfirmed_error}. Nothing was "
        "deleted; open the shard "
        "again, which reads the stored state"
    ) from unconfirmed_error
