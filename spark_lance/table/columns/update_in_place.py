"""Replace values of some columns in place: rows keep their addresses, and other columns are not read.

Every fragment with a changed row gets one new file with these columns, for all its rows. The file replaces
the columns in the old files. (Lance table format, update, REWRITE_COLUMNS.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from spark_lance.arrow.arrays import join as join_arrays
from spark_lance.arrow.arrays import make_filterable
from spark_lance.errors import ColumnNotFoundError, SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.io.retry import RetryPolicy
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.columns.evolve import BATCH_BYTES, BATCH_ROWS, ColumnFiles, with_files
from spark_lance.table.columns.new_columns import Join
from spark_lance.table.commits.commit import CONFLICT_RETRIES, commit_operation, retry_operation
from spark_lance.table.commits.proposal import SYSTEM_ENV, CommitEnv
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.data_replacement import place_file
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS, SYSTEM_COLUMNS
from spark_lance.table.writing.align import Aligner
from spark_lance.table.writing.column_files import write_live_rows

pb = transaction_pb2.Transaction


@dataclass(frozen=True)
class UpdatedFragment:
    """A fragment after an update in place.

    Attributes:
        fragment: the fragment's message with the new file.
        field_ids: the ids of the fields in the new file.
        offsets: the physical offsets of the rows with new values, ascending.
    """

    fragment: table_pb2.DataFragment
    field_ids: tuple[int, ...]
    offsets: npt.NDArray[np.uint32]


def update_columns(
    snapshot: Snapshot,
    data: pa.Table,
    left_on: str,
    right_on: str,
    *,
    reruns: RetryPolicy = CONFLICT_RETRIES,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Update the rows whose key is in `data` with its values, and return the new version.

    Nothing is committed if no row matches.

    Args:
        snapshot: the version for the first attempt.
        data: keys and new values; the columns with values have the names of the table's columns.
        left_on: the table's key column, or `_rowid` or `_rowaddr`.
        right_on: the key column of `data`.
        reruns: the number of retries, and the pauses, after conflicts.
        env: clock, sleep and random numbers.

    Raises:
        SchemaError: a column does not exist, or values do not fit it.
        CommitError: the commit conflicted; see its subclasses.
        UnsupportedFormatError: the table uses a feature that we cannot write.
    """
    files = ColumnFiles(snapshot.table)

    def attempt(at: Snapshot) -> Manifest:
        version = at.manifest
        values = NewValues(version, data, left_on, right_on)
        updated_fragments = [
            updated
            for fragment in version.fragments
            if (updated := update_fragment(files, at, fragment, values)) is not None
        ]
        if not updated_fragments:
            return version
        operation = pb.Update(
            updated_fragments=[updated.fragment for updated in updated_fragments],
            fields_modified=updated_fragments[0].field_ids,
            update_mode=pb.Update.REWRITE_COLUMNS,
            updated_fragment_offset_bitmaps={
                updated.fragment.id: BitMap(updated.offsets).serialize() for updated in updated_fragments
            },
        )
        return commit_operation(at.table, operation, read_version=version.version, env=env)

    return with_files(files, lambda: retry_operation(snapshot, attempt, reruns, env))


class NewValues:
    """New values by key, in the types of the table's columns."""

    def __init__(self, version: Manifest, data: pa.Table, left_on: str, right_on: str) -> None:
        schema = version.schema
        kind = pa.uint64() if left_on in (ROW_ID, ROW_ADDRESS) else schema.field(left_on).arrow_type()
        if right_on not in data.column_names:
            raise SchemaError(
                f"column {right_on!r} is not in the data; it has {', '.join(data.column_names)}"
            )
        others = data.drop_columns([right_on])
        if not others.num_columns:
            raise SchemaError("the data has no columns besides its key")
        _check_names(others.column_names, schema)
        self.key = left_on
        self.fields: tuple[Field, ...] = schema.select(others.column_names).fields
        aligner = Aligner(others.schema, Schema(self.fields))
        aligned_table = pa.Table.from_batches(map(aligner.align, others.to_batches()), aligner.arrow_schema)
        name = "".join(others.column_names) + "key"  # a name of its own
        self._join = Join(aligned_table.append_column(name, data[right_on]), name, kind)

    def places(self, keys: pa.ChunkedArray | pa.Array) -> pa.Array:
        """Return the position of each key's new values, as int64; null if the key is not in the data."""
        return self._join.places(keys)

    def replace_values(self, old: Sequence[pa.Array], places: pa.Array) -> pa.RecordBatch:
        """Return columns in which rows with a non-null place have their new values."""
        matched = np.asarray(places.is_valid())
        rows = np.arange(len(places))
        rows[matched] = len(places) + np.arange(int(matched.sum()))
        new = self._join.take(places.drop_null())
        columns = []
        for before, after, field in zip(old, new.columns, self.fields, strict=True):
            both = join_arrays([before, after])
            if len(both) > 1:
                raise SchemaError(
                    f"column {field.name!r}: the dictionaries of old and new values cannot be merged"
                )
            columns.append(make_filterable(both[0]).take(pa.array(rows)))
        return pa.RecordBatch.from_arrays(columns, schema=Schema(self.fields).to_arrow())


def update_fragment(
    files: ColumnFiles, snapshot: Snapshot, fragment: table_pb2.DataFragment, values: NewValues
) -> UpdatedFragment | None:
    """Write the columns of a fragment with new values; return None if no row has new values."""
    keys = snapshot.scan([values.key], with_row_address=True)
    parts = [np.empty(0, np.uint32)]
    for table in keys.task(fragment).tables(BATCH_BYTES):
        matched = np.asarray(values.places(table.column(0)).is_valid())
        addresses = table[ROW_ADDRESS].to_numpy()
        parts.append(addresses[matched].astype(np.uint32))  # the low 32 bits of an address are the offset
    offsets = np.concatenate(parts)
    if not len(offsets):
        return None
    names = [field.name for field in values.fields]
    scan = snapshot.scan(list(dict.fromkeys([values.key, *names])))
    ids = tuple(part.id for field in values.fields for part in field.walk())
    file = files.find(fragment, ids, scan.fields, scan.bases)
    if file is None:

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in scan.task(fragment).batches(BATCH_BYTES, BATCH_ROWS):
                old = [batch.column(name) for name in names]
                yield values.replace_values(old, values.places(batch.column(values.key)))

        version = snapshot.manifest.file_version
        column_file = write_live_rows(files.table, fragment, values.fields, batches(), version, scan.bases)
        file = files.add(fragment, ids, scan.fields, column_file)
    updated = table_pb2.DataFragment()
    updated.CopyFrom(fragment)
    place_file(updated, file)
    return UpdatedFragment(updated, tuple(file.fields), offsets)


def _check_names(names: Sequence[str], schema: Schema) -> None:
    present = {field.name for field in schema.fields}
    for name in names:
        if name in present:
            continue
        if name in SYSTEM_COLUMNS:
            raise SchemaError(
                f"{name} is a metadata column, which cannot be updated: leave it out of the data"
            )
        column_names = ", ".join(field.name for field in schema.fields)
        raise ColumnNotFoundError(
            f"column {name!r} does not exist: no column {name!r}; the table has {column_names}"
        )
