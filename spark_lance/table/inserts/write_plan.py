"""Plan a write from the current state of the table, and commit the files that tasks wrote.

A plan can be pickled: the driver makes the plan, tasks use it to write files, and the driver commits the
files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from google.protobuf.message import Message

from spark_lance.errors import OptionError, SchemaError, TableExistsError, TableNotFoundError, suggestion
from spark_lance.expressions.expressions import Expression
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import DEFAULT_VERSION, FileVersion
from spark_lance.file.blob_references import references_as_blobs
from spark_lance.file.blob_writer import blobs_as_given, blobs_as_stored
from spark_lance.proto import table_pb2
from spark_lance.table.commits.commit import commit_operation, create_table
from spark_lance.table.commits.commit_rows import delete_on_failure
from spark_lance.table.commits.idempotent_writes import AppliedWrites, IdempotentWrite
from spark_lance.table.format.bases import BasePath, Bases, numbered
from spark_lance.table.format.features import check_writable
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.partitions import NO_PARTITIONS, PARTITION_FIELDS, PartitionSpec
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.inserts.merge_schema import add_missing_columns, missing_columns, renumber_fields
from spark_lance.table.inserts.replace_pairs import PairMatch
from spark_lance.table.inserts.replace_partitions import PartitionMatch
from spark_lance.table.inserts.replace_rows import KeyMatch, RowCheck, replace_matches, replace_rows
from spark_lance.table.operations.append import append_message
from spark_lance.table.operations.overwrite import overwrite_message
from spark_lance.table.reading.snapshot import PrunerFactory, Snapshot
from spark_lance.table.schema.changes import add_fields
from spark_lance.table.schema.keys import check_keys, primary_key
from spark_lance.table.versions.versions import load_latest, load_version
from spark_lance.table.writing.align import Aligner, check_added_names
from spark_lance.table.writing.targets import check_location
from spark_lance.table.writing.write import delete_fragment_files

MODES = ("create", "append", "overwrite")


@dataclass(frozen=True)
class WritePlan:
    """The plan of a write.

    Attributes:
        operation: "create", "append", "replace" or "overwrite", depending on the mode and the table.
        read_version: the version that the plan is based on; 0 if the table does not exist.
        schema: the fields of the files, with ids; for append a subset of the table's fields.
        version: the version of the data files.
        stable_row_ids: whether a new table gets stable row ids.
        fallback: the operation if another writer creates the table first: "append", "replace", "overwrite",
            or "" for an error.
        merges: whether missing columns are added to the table.
        check: operation "replace": the condition of the replaced rows, which the new rows must satisfy.
        match: operation "replace": finds the rows that the new rows replace.
        whole: operation "overwrite": the new schema of the table, if the files contain only a part of it.
        bases: operation "create": base paths of the new table.
        partitions: the partition spec by which files are split, bound to `schema`.
        config: operations "create" and "overwrite": settings to add to the table's settings.
    """

    operation: str
    read_version: int
    schema: Schema
    version: FileVersion
    stable_row_ids: bool = False
    fallback: str = ""
    merges: bool = False
    check: RowCheck | None = None
    match: KeyMatch | PairMatch | PartitionMatch | None = None
    whole: Schema | None = None
    bases: tuple[BasePath, ...] = ()
    partitions: PartitionSpec = NO_PARTITIONS
    config: Mapping[str, str] = field(default_factory=dict)

    def places(self, table: TableRef, manifest: Manifest | None) -> Bases:
        """Return the base paths of a version, or of the table to be created if `manifest` is None."""
        return Bases(table, self.bases) if manifest is None else Bases.of(table, manifest.message)


def find_latest(table: TableRef) -> Manifest | None:
    """Return the newest version of a table; None if the table does not exist.

    Raises:
        UnsupportedFormatError, FormatError: see `load_latest`.
    """
    try:
        return load_latest(table)
    except TableNotFoundError:
        return None


def _unknown_mode(mode: object) -> OptionError:
    choices = f"{', '.join(MODES)}{suggestion(mode, MODES)}"
    return OptionError(f"write mode {mode!r} does not exist; use one of {choices}")


def plan_write(
    table: TableRef,
    manifest: Manifest | None,
    source: pa.Schema,
    mode: str,
    *,
    data_storage_version: str | None = None,
    stable_row_ids: bool | None = None,
    new_columns: pa.Schema | None = None,
    keep_schema: bool = False,
    replace_where: str | Expression | None = None,
    replace_using: Sequence[str] = (),
    replace_on: tuple[str, str] | None = None,
    replace_partitions: bool = False,
    bases: Sequence[BasePath] = (),
    in_place: bool = False,
) -> WritePlan:
    """Return the plan to write data of the Arrow schema `source` to a table.

    Args:
        table: the table.
        manifest: the table's newest version from `find_latest`; all decisions about a write use the same one.
        source: the schema of the data.
        mode: "create" (fails if the table exists), "append" or "overwrite" (both create a missing table).
        data_storage_version: such as "2.1"; the default is the table's version, or 2.2 for a new table.
        stable_row_ids: whether a new table gets stable row ids; by default, whether it has a primary key.
        new_columns: the data's columns as a new table would store them; None raises an error for new columns.
        keep_schema: an overwrite keeps the table's columns, and the data must fit them.
        replace_where: an overwrite replaces only the rows that satisfy this condition. New rows must, too.
        replace_using: an overwrite replaces only rows that are equal to a new row in these columns.
        replace_on: an overwrite replaces only rows that a condition matches with a new row: the condition,
            and the alias of the table in it.
        replace_partitions: an overwrite replaces only the partitions of the new rows, if the table has any.
        bases: base paths of a new table, with id 0; the plan assigns ids from 1.
        in_place: whether a table may be created in a folder with files of other formats.

    Raises:
        ExpressionError: the condition does not fit the table.
        TableExistsError: the mode is "create", and the table exists.
        SchemaError: the data does not fit the table (append) or cannot be stored at all.
        UnsupportedFormatError: the table uses a feature that we cannot write.
        OptionError: the mode or version does not exist; or `bases` is set, but the table exists.
        LocationInUseError: the table does not exist, but its folder has other files.
    """
    if mode not in MODES:
        raise _unknown_mode(mode)
    requested_version = None if data_storage_version is None else FileVersion.parse(data_storage_version)
    merges = new_columns is not None
    if manifest is None:
        if not in_place:
            check_location(table)
        version = requested_version or DEFAULT_VERSION
        schema = _new_schema(source if new_columns is None else new_columns, version)
        check = None if replace_where is None else RowCheck.of(replace_where, schema)
        match = _make_match(replace_using, replace_on, schema, source.names)
        return _plan_creation(mode, schema, version, stable_row_ids, merges, check, match, bases)
    if mode == "create":
        raise TableExistsError(f"a Lance table exists at {table.root}: use mode append or overwrite")
    if bases:
        raise OptionError(f"Cannot register new bases in {mode.capitalize()} mode: add_bases does that")
    check_writable(manifest.message, manifest.path, manifest.facts)
    version = requested_version or manifest.file_version
    if mode == "overwrite" and replace_where is None and not keep_schema:
        schema = _new_schema(source, version, manifest.first_new_field_id)
        return WritePlan(mode, manifest.version, schema, version)
    columns = manifest.schema if new_columns is None else _add_missing_to_schema(manifest, new_columns)
    if mode == "append":
        return WritePlan(mode, manifest.version, Aligner(source, columns).schema, version, merges=merges)
    if replace_where is not None:
        check = RowCheck.of(replace_where, columns)
        schema = Aligner(source, columns).schema
        return WritePlan("replace", manifest.version, schema, version, merges=merges, check=check)
    match = _make_match(replace_using, replace_on, columns, source.names)
    if match is None and replace_partitions and (spec := PartitionSpec.of_config(manifest.config)):
        match = PartitionMatch(spec.bound(columns))
    if match is not None:
        schema = Aligner(source, columns).schema
        return WritePlan("replace", manifest.version, schema, version, merges=merges, match=match)
    whole = _new_schema(columns.to_arrow(), version, manifest.first_new_field_id)
    return WritePlan(mode, manifest.version, Aligner(source, whole).schema, version, whole=whole)


def _plan_creation(
    mode: str,
    schema: Schema,
    version: FileVersion,
    stable_row_ids: bool | None,
    merges: bool,
    check: RowCheck | None,
    match: KeyMatch | PairMatch | PartitionMatch | None,
    bases: Sequence[BasePath],
) -> WritePlan:
    fallback = _choose_fallback(mode, check is not None or match is not None, bases)
    stable = bool(primary_key(schema)) if stable_row_ids is None else stable_row_ids
    numbered_bases = numbered(bases)
    return WritePlan(
        "create", 0, schema, version, stable, fallback, merges, check, match, bases=numbered_bases
    )


def _make_match(
    using: Sequence[str], on: tuple[str, str] | None, table: Schema, source: Sequence[str]
) -> KeyMatch | PairMatch | PartitionMatch | None:
    """Return the match that finds the rows that new rows replace; None if neither option is set."""
    if on is not None:
        return PairMatch.of(*on, table, source)
    return KeyMatch.of(using, table, source) if using else None


def _choose_fallback(mode: str, replaces: bool, bases: Sequence[BasePath]) -> str:
    """Return the operation if another writer creates the table first, see `WritePlan.fallback`."""
    if mode == "create" or bases:  # Another writer's table would not have the base paths.
        return ""
    return "replace" if replaces else mode


def _add_missing_to_schema(manifest: Manifest, columns: pa.Schema) -> Schema:
    """Return the table's schema with the missing columns added."""
    missing = missing_columns(Schema.from_arrow(columns), manifest.schema)
    check_added_names(missing.names)
    return add_fields(manifest, missing)[0] if missing.names else manifest.schema


def _new_schema(source: pa.Schema, version: FileVersion, first_id: int = 0) -> Schema:
    """Return the schema of a new table, or of an overwritten table, for data with the schema `source`."""
    source = pa.schema([references_as_blobs(field) for field in source], source.metadata)
    storage_schema = pa.schema([blobs_as_stored(field, version) for field in source], source.metadata)
    schema = Schema.from_arrow(storage_schema, first_id)
    fields = (blobs_as_given(*each) for each in zip(schema.fields, source.types, strict=True))
    schema = replace(schema, fields=tuple(fields))
    check_keys(schema)
    return schema


def commit_write(
    table: TableRef,
    plan: WritePlan,
    fragments: Sequence[bytes],
    properties: Mapping[str, str] | None = None,
    config: Mapping[str, str] | None = None,
    write_id: IdempotentWrite | None = None,
    pruner_factory: PrunerFactory | None = None,
    recent: Manifest | None = None,
) -> Manifest:
    """Commit files that were written with `plan`, and return the table's version that contains them.

    An append without rows commits only new columns, if any, and returns the newest version. With `write_id`,
    it commits a version to record the write.

    Args:
        table: the table.
        plan: the plan with which the files were written.
        fragments: the result of `write_fragments`.
        properties: key-value pairs to store with the transaction.
        config: settings of the table if this call creates it.
        write_id: commit only if the same job has not committed this number or a higher one.
        pruner_factory: speeds up the search for rows to replace, see `Snapshot`.
        recent: for an append, the version of the plan if it is `recent_version`: the commit checks that the
            table still has it.

    Raises:
        AlreadyCommittedError: the job has already committed this number. The files are not part of the table.
        TableExistsError: another writer created the table concurrently (only for mode "create").
        SchemaError: another writer created the table with another schema.
        CommitError: the commit conflicted, or its outcome is unknown; see its subclasses.
    """
    messages = [table_pb2.DataFragment.FromString(data) for data in fragments]
    config = {**plan.config, **(config or {})}
    if plan.operation == "create":
        try:
            return _create_with_fragments(table, plan, messages, properties, config, write_id)
        except TableExistsError:
            if not plan.fallback:
                raise
        plan = _after_lost_creation(plan, load_latest(table))
    base = None
    if plan.merges or plan.operation == "replace":
        base = _load_base(table, plan, write_id)
        messages = renumber_fields(fragments, plan.schema, base.schema)
    if plan.check is not None and base is not None:
        at = Snapshot(table, base, pruner_factory)
        return replace_rows(at, plan.check.filter, fragments, plan.schema, properties, write_id)
    if plan.match is not None and base is not None:
        at = Snapshot(table, base, pruner_factory)
        return replace_matches(at, plan.match, fragments, plan.schema, properties, write_id)
    if plan.operation == "append" and not messages and write_id is None:
        return base if base is not None else load_version(table, plan.read_version)
    operation: Message
    if plan.operation == "append":
        operation = append_message(messages)
    else:
        operation = overwrite_message(plan.whole or plan.schema, messages, plan.config)
    return commit_operation(
        table,
        operation,
        read_version=plan.read_version,
        properties=properties,
        write_id=write_id,
        base=recent,
    )


def _create_with_fragments(
    table: TableRef,
    plan: WritePlan,
    fragments: Sequence[table_pb2.DataFragment],
    properties: Mapping[str, str] | None,
    config: Mapping[str, str] | None,
    write_id: IdempotentWrite | None,
) -> Manifest:
    """Commit the first version of a table, and return it."""
    return create_table(
        table,
        plan.schema,
        fragments,
        version=plan.version,
        stable_row_ids=plan.stable_row_ids,
        config=config,
        bases=[base.message() for base in plan.bases],
        properties=properties,
        write_id=write_id,
    )


def commit_or_discard(
    table: TableRef,
    plan: WritePlan,
    fragments: Sequence[bytes],
    properties: Mapping[str, str] | None = None,
    config: Mapping[str, str] | None = None,
    write_id: IdempotentWrite | None = None,
    pruner_factory: PrunerFactory | None = None,
    bases: Bases | None = None,
    recent: Manifest | None = None,
) -> Manifest:
    """Commit files like `commit_write`, and delete them if certainly nothing was committed.

    Args:
        table, plan, fragments, properties, config, write_id, pruner_factory, recent: see `commit_write`.
        bases: the base paths, to delete files that are not under the table's own root.

    Raises:
        CommitOutcomeUnknownError: the version may exist; no file was deleted.
        LanceError, OSError: see `commit_write`; nothing was committed, and the files were deleted.
    """
    with delete_on_failure(lambda: delete_fragment_files(table, fragments, bases)):
        return commit_write(table, plan, fragments, properties, config, write_id, pruner_factory, recent)


def _load_base(table: TableRef, plan: WritePlan, write_id: IdempotentWrite | None) -> Manifest:
    """Return the version to which rows are added, after adding missing columns."""
    latest = load_latest(table)
    if plan.merges and missing_columns(plan.schema, latest.schema).names:
        if write_id is not None:
            ledger = AppliedWrites()
            ledger.learn(table, latest)
            ledger.refuse(write_id, table.root)
        return add_missing_columns(Snapshot(table, latest), plan.schema)
    return load_version(table, plan.read_version) if plan.operation == "replace" else latest


def _after_lost_creation(plan: WritePlan, winner: Manifest) -> WritePlan:
    """Return the plan after another writer created the table first.

    Raises:
        SchemaError: the files do not fit the winner's schema or partitions.
    """
    if plan.fallback == "append" and not plan.merges and winner.schema.fields != plan.schema.fields:
        raise SchemaError(
            "another writer created the table meanwhile with another schema "
            f"({', '.join(field.name for field in winner.schema.fields)}): write again to fit it"
        )
    if plan.fallback != "overwrite" and plan.config.get(PARTITION_FIELDS, "") != winner.config.get(
        PARTITION_FIELDS, ""
    ):
        raise SchemaError(
            "another writer created the table meanwhile with other partitions: leave out partitionBy"
        )
    return replace(plan, operation=plan.fallback, read_version=winner.version)
