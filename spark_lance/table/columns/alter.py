"""Drop, move, rename and cast columns, and change their nullability.

Only a cast writes files; the other changes affect only the schema. A cast writes the new values to new files.
The old values remain in files that also have other columns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_lance.errors import CommitError, SchemaError, UnsupportedFormatError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.io.retry import RetryPolicy
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.columns.evolve import (
    BATCH_BYTES,
    BATCH_ROWS,
    ColumnFiles,
    commit_files,
    refuse_mem_wal,
    with_files,
)
from spark_lance.table.columns.job_records import FragmentResult, JobRecords
from spark_lance.table.columns.work import ColumnWork, UnchangedColumns
from spark_lance.table.commits.commit import CONFLICT_RETRIES, commit_operation, retry_operation
from spark_lance.table.commits.proposal import SYSTEM_ENV, CommitEnv
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.partitions import PARTITION_FIELDS, PartitionSpec
from spark_lance.table.format.reserved_names import MEM_WAL
from spark_lance.table.operations.data_replacement import place_file
from spark_lance.table.operations.project import drop_idle_files, project_message
from spark_lance.table.operations.update_config import text_updates
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.schema.changes import (
    Alteration,
    AlteredSchema,
    alter_fields,
    cast_column,
    drop_fields,
    move_field,
    schema_protos,
    tightened_fields,
)
from spark_lance.table.schema.keys import forget_key, primary_key
from spark_lance.table.writing.column_files import each_fragment

logger = logging.getLogger("spark_lance")


def drop_columns(
    snapshot: Snapshot,
    paths: Sequence[str],
    *,
    reruns: RetryPolicy = CONFLICT_RETRIES,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Drop fields and return the new version. It does not list data files without any remaining field.

    Raises:
        SchemaError: see `drop_fields`.
        CommitError: the commit conflicted; see its subclasses.
    """

    def attempt(at: Snapshot) -> Manifest:
        version = at.manifest
        schema = drop_fields(version.schema, paths)
        operation = project_message(schema_protos(schema, version))
        return commit_operation(at.table, operation, read_version=version.version, env=env)

    return retry_operation(snapshot, attempt, reruns, env)


def unset_primary_key(
    snapshot: Snapshot, *, reruns: RetryPolicy = CONFLICT_RETRIES, env: CommitEnv = SYSTEM_ENV
) -> Manifest:
    """Remove the primary key and return the new version; the key columns stay NOT NULL.

    Raises:
        SchemaError: the table has no primary key.
        UnsupportedFormatError: the table has a MemWAL, which needs the key.
        CommitError: the commit conflicted; see its subclasses.
    """

    def attempt(at: Snapshot) -> Manifest:
        version = at.manifest
        if not primary_key(version.schema):
            raise SchemaError(f"the table declares no primary key ({at.root})")
        if any(index.name == MEM_WAL for index in version.indices):
            raise UnsupportedFormatError("a table with a MemWAL needs its primary key", version.path)
        fields = schema_protos(version.schema, version)
        forget_key(fields)
        operation = project_message(fields)
        return commit_operation(at.table, operation, read_version=version.version, env=env)

    return retry_operation(snapshot, attempt, reruns, env)


def move_columns(
    snapshot: Snapshot,
    moves: Sequence[tuple[str, str | None]],
    *,
    reruns: RetryPolicy = CONFLICT_RETRIES,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Move fields, one after the other, and return the new version.

    Args:
        snapshot: the version for the first attempt.
        moves: pairs of a field and the field after which it is placed; None for the first position.
        reruns: the number of retries, and the pauses, after conflicts.
        env: clock, sleep and random numbers.

    Raises:
        SchemaError: see `move_field`.
        CommitError: the commit conflicted; see its subclasses.
    """

    def attempt(at: Snapshot) -> Manifest:
        version = at.manifest
        schema = version.schema
        for path, after in moves:
            schema = move_field(schema, path, after)
        operation = project_message(schema_protos(schema, version))
        return commit_operation(at.table, operation, read_version=version.version, env=env)

    return retry_operation(snapshot, attempt, reruns, env)


def alter_columns(
    snapshot: Snapshot,
    alterations: Sequence[Alteration],
    *,
    execute: Execute | None = None,
    reruns: RetryPolicy = CONFLICT_RETRIES,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Alter fields and return the new version.

    Fields that become NOT NULL are read to check that no live row has a null. Fields with a new type are
    read, cast and written under new ids. A map whose values get new fields is written again, too.

    Args:
        snapshot: the version for the first attempt.
        alterations: the changes of fields.
        execute: casts fragments, given by their ids; in this process by default.
        reruns: the number of retries, and the pauses, after conflicts.
        env: clock, sleep and random numbers.

    Raises:
        SchemaError: see `alter_fields`. Also raised if a NOT NULL field would have nulls, a value cannot be
            cast, a cast field has an index, or the same call casts fields and makes fields NOT NULL.
        OptionError: the setting of the partition fields is damaged.
        CommitError: the commit conflicted; see its subclasses.
        UnsupportedFormatError: the table uses a feature that we cannot write.
    """
    files = ColumnFiles(snapshot.table)

    def attempt(at: Snapshot) -> Manifest:
        version = at.manifest
        altered = alter_fields(version, alterations)
        not_null_ids = tightened_fields(version.schema, alterations)
        if altered.replaced:
            if not_null_ids:
                raise SchemaError("cast columns first, and then make them NOT NULL: not both in one call")
            refuse_mem_wal(version)
            _check_not_indexed(version, altered)
            fragments = _cast_fragments(files, at, altered, execute or _execute_locally(files))
            return commit_files(at, altered.schema, fragments, env)
        for number in not_null_ids:
            _check_no_nulls(at, number)
        operation = project_message(schema_protos(altered.schema, version), keeps_nulls=not not_null_ids)
        return commit_operation(at.table, operation, read_version=version.version, env=env)

    spec = PartitionSpec.of_config(snapshot.manifest.config)  # Refuse a damaged setting before the commit.
    committed = with_files(files, lambda: retry_operation(snapshot, attempt, reruns, env))
    if any(alteration.name is not None for alteration in alterations):
        return _rename_partition_columns(snapshot, spec, committed, env)
    return committed


def _rename_partition_columns(
    snapshot: Snapshot, spec: PartitionSpec, committed: Manifest, env: CommitEnv
) -> Manifest:
    """Update the names of renamed columns in the partition fields, and return the newest version.

    If this fails, the version with the new names is committed all the same, so the failure is logged.
    """
    renamed = spec.renamed(snapshot.schema, committed.schema)
    if [(field.name, field.source) for field in renamed.fields] == [
        (field.name, field.source) for field in spec.fields
    ]:
        return committed
    operation = transaction_pb2.Transaction.UpdateConfig(
        config_updates=text_updates({PARTITION_FIELDS: renamed.text()})
    )
    try:
        return commit_operation(snapshot.table, operation, read_version=committed.version, env=env)
    except CommitError as error:
        logger.warning(
            "the partition fields of %s keep the former name of a column: %s", snapshot.root, error
        )
        return committed


def _check_not_indexed(version: Manifest, altered: AlteredSchema) -> None:
    """Check that no index uses a field that is replaced."""
    dropped_ids = {field.id for field in version.schema.walk()} - {
        field.id for field in altered.schema.walk()
    }
    names = {index.name for index in version.indices if dropped_ids.intersection(index.fields)}
    if names:
        raise SchemaError(
            f"an indexed column cannot be cast: first drop the index {', '.join(sorted(names))}"
        )


def _check_no_nulls(snapshot: Snapshot, number: int) -> None:
    """Check that no live row has a null in a field or in a struct around the field."""
    top = next(field for field in snapshot.schema.fields if any(f.id == number for f in field.walk()))
    pruned = _prune_to(top, {number})
    for task in snapshot.scan([top.name]).tasks():
        for table in replace(task, fields=(pruned,)).tables(BATCH_BYTES):
            for chunk in table.column(0).chunks:
                if _has_null(pruned, chunk, number):
                    name = next(field.name for field in top.walk() if field.id == number)
                    raise SchemaError(f"column {name!r} has nulls, so it cannot be made NOT NULL")


def _prune_to(field: Field, ids: set[int]) -> Field:
    """Return a field pruned to the fields with `ids`, with all their children. Maps are not pruned."""
    if field.id in ids or not field.children or field.kind in ("packed_struct", "blob", "map"):
        return field
    return replace(
        field, children=tuple(_prune_to(child, ids) for child in field.children if _contains(child, ids))
    )


def _contains(field: Field, ids: set[int]) -> bool:
    return any(part.id in ids for part in field.walk())


def _has_null(field: Field, array: pa.Array, number: int) -> bool:
    if (field.id == number or field.kind == "struct") and array.null_count:
        return True
    if field.id == number or not field.children:
        return False
    if field.kind == "struct":
        return any(_has_null(child, array.field(i), number) for i, child in enumerate(field.children))
    return _has_null(field.children[0], _items(array), number)


def _items(array: pa.Array) -> pa.Array:
    """Return the items of the lists or maps of an array."""
    if pa.types.is_map(array.type):
        lists = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
        return lists.flatten()
    return array.flatten()


Execute = Callable[["Cast", Sequence[int]], list[FragmentResult]]


def _execute_locally(files: ColumnFiles) -> Execute:
    """Return a function that casts fragments in this process."""

    def execute(cast: Cast, fragments: Sequence[int]) -> list[FragmentResult]:
        return each_fragment(files.store, fragments, lambda number: files.keep(cast(number)))

    return execute


def _cast_fragments(
    files: ColumnFiles, snapshot: Snapshot, altered: AlteredSchema, execute: Execute
) -> list[table_pb2.DataFragment]:
    """Write the new values of all fragments and return the fragments with the new files."""
    version = snapshot.manifest
    new_ids = {part.id for field in altered.replaced.values() for part in field.walk()}
    pairs = []
    is_v2_0 = version.file_version is FileVersion.V2_0
    old_ids = set(altered.replaced)
    for position, top in enumerate(altered.schema.fields):
        if _contains(top, new_ids):
            old = version.schema.fields[position]
            # A 2.0 file lists the parents of its columns, and two files must not list the same parent: so all
            # fields of the column are written to the new file.
            pairs.append((old, top) if is_v2_0 else (_prune_to(old, old_ids), _prune_to(top, new_ids)))
    fields = tuple(new for _, new in pairs)
    ids = tuple(part.id for field in fields for part in field.walk())
    # The same call may rename fields; files identify columns by id.
    reads = tuple(_with_names_of(old, new) for old, new in pairs)
    names = tuple(field.name for field in reads)
    bases = snapshot.bases
    finished = {fragment.id: files.finished(fragment, ids, reads, bases) for fragment in version.fragments}
    missing = [fragment for fragment in version.fragments if finished[fragment.id] is None]
    work = ColumnWork(
        files.table,
        None,
        fields,
        reads,
        UnchangedColumns.FORBIDDEN,
        version.file_version,
        bases,
        version.uses_stable_row_ids,
        {fragment.id: fragment.SerializeToString() for fragment in missing},
    )
    cast = Cast(work, names)
    for finished_part in execute(cast, [fragment.id for fragment in missing]) if missing else ():
        files.keep(finished_part)
        finished[finished_part.fragment] = finished_part
    live = {field.id for field in altered.schema.walk()}
    return [_with_file(fragment, finished[fragment.id], live) for fragment in version.fragments]


@dataclass(frozen=True)
class Cast:
    """The cast of columns of fragments. Can be pickled."""

    work: ColumnWork
    names: tuple[str, ...]

    def __call__(self, number: int) -> FragmentResult:
        """Write the columns of a fragment with their new types."""
        schema = Schema(self.work.fields).to_arrow()

        def cast(batch: pa.RecordBatch) -> pa.RecordBatch:
            columns = [
                cast_column(column, field.type, field.name)
                for column, field in zip(batch.columns, schema, strict=True)
            ]
            return pa.RecordBatch.from_arrays(columns, schema=schema)

        return self.work.compute(number, self.names, cast, BATCH_ROWS)

    def recorded(self, records: JobRecords) -> Cast:
        """Return the same cast with records of finished fragments."""
        return replace(self, work=replace(self.work, records=records))


def _with_names_of(old: Field, new: Field) -> Field:
    """Return the old field with the names of the new field, down to the level where children differ."""
    if len(old.children) != len(new.children):
        return replace(old, name=new.name)
    children = tuple(_with_names_of(a, b) for a, b in zip(old.children, new.children, strict=True))
    return replace(old, name=new.name, children=children)


def _with_file(
    fragment: table_pb2.DataFragment, result: FragmentResult | None, live: set[int]
) -> table_pb2.DataFragment:
    """Return a fragment with one more file, and without files that have no field of the table."""
    longer = table_pb2.DataFragment()
    longer.CopyFrom(fragment)
    file = None if result is None else result.data_file
    if file is None:
        raise CommitError(f"fragment {fragment.id} has not been written, so nothing was committed")
    place_file(longer, file)
    drop_idle_files(longer, live)
    return longer
