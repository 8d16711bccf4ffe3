"""Deleting rows: find them, write deletion files, commit; begin anew where another writer was in the way."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import CommitOutcomeUnknownError, LanceError, RetryableConflictError
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.store import Store
from spark_lance.table.commit import REAL, Surroundings, commit_operation
from spark_lance.table.features import check_writable
from spark_lance.table.manifest import Manifest
from spark_lance.table.operations.delete import delete_message
from spark_lance.table.refs import load_latest
from spark_lance.table.row_changes import RowChanges
from spark_lance.table.scan import ROW_ADDRESS, ROW_ID, Scan, filter_columns

__all__ = ["delete_rows", "find_rows"]

_WINDOW_BYTES = 64 << 20
_RERUNS = RetryPolicy(attempts=10)


def delete_rows(
    store: Store,
    root: str,
    manifest: Manifest,
    predicate: pc.Expression,
    *,
    reruns: RetryPolicy = _RERUNS,
    surroundings: Surroundings = REAL,
) -> Manifest:
    """Delete the rows for which a predicate is true and return the version without them.

    A version is committed even if no row matches. Rows are looked for in `manifest`; where another writer
    changed the same rows or moved them meanwhile, they are looked for again in the newest version.

    Raises:
        ExpressionError: the predicate does not fit the table.
        RetryableConflictError: other writers were in the way each time.
        CommitError: the commit failed; see its other subclasses.
        UnsupportedFormatError: the table needs a feature that is not written here.
    """
    for wait in chain([0.0], reruns.delays(surroundings.random)):
        if wait:
            surroundings.sleep(wait)
            manifest = load_latest(store, root)
        check_writable(manifest.message, manifest.path)
        changes = find_rows(store, root, manifest, predicate)
        try:
            return _commit(store, root, changes, str(predicate), surroundings)
        except RetryableConflictError as error:
            conflict = error
    raise conflict


def find_rows(store: Store, root: str, manifest: Manifest, predicate: pc.Expression) -> RowChanges:
    """Return the live rows of a version for which a predicate is true.

    Raises:
        ExpressionError: the predicate does not fit the table.
    """
    schema = manifest.schema.to_arrow()
    for name in (ROW_ID, ROW_ADDRESS):
        schema = schema.append(pa.field(name, pa.uint64()))
    columns = filter_columns(predicate, schema)
    scan = Scan.plan(store, root, manifest, columns, with_row_address=True)
    rows = {}
    for fragment in manifest.fragments:
        found = [
            table[ROW_ADDRESS].to_numpy().astype(np.uint32)  # the low half of an address is the offset
            for table in scan.task(fragment).tables(_WINDOW_BYTES, predicate)
        ]
        if found:
            rows[fragment.id] = np.concatenate(found)
    return RowChanges(manifest, rows)


def _commit(
    store: Store, root: str, changes: RowChanges, predicate: str, surroundings: Surroundings
) -> Manifest:
    try:
        outcome = changes.apply(store, root, changes.source)
        operation = delete_message(outcome.updated, outcome.removed, predicate)
        committed = commit_operation(
            store,
            root,
            operation,
            read_version=changes.source.version,
            rows=changes,
            surroundings=surroundings,
        )
    except CommitOutcomeUnknownError:
        raise
    except (LanceError, OSError):
        # Every other failure says that nothing was committed.
        changes.discard(store, root)
        raise
    changes.discard(store, root, committed)
    return committed
