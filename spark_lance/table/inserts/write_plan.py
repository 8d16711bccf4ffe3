"""How a write is carried out: decided once from the table as it is, then executed by tasks, then committed.

A plan can be pickled: the driver makes it, tasks write files by it, the driver commits them by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from google.protobuf.message import Message

from spark_lance.errors import OptionError, SchemaError, TableExistsError, TableNotFoundError
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
from spark_lance.table.inserts.merge_schema import add_missing_columns, missing_columns, renumbered
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
        operation: "create", "append", "replace" or "overwrite", decided after a look at the location.
        read_version: the version that the plan is based on; 0 if there is no table yet.
        schema: the fields that files are written with, ids included; for append a subset of the table's.
        version: version of the data files.
        stable_row_ids: whether a new table gets stable row ids.
        fallback: the operation if another writer creates the table first: "append", "replace", "overwrite",
            or "" for an error.
        merges: whether the table gets columns that it lacks.
        check: operation "replace": the condition of the replaced rows, which the new rows must fulfil.
        match: operation "replace": the rule that finds the rows that a new row replaces.
        whole: operation "overwrite": the new schema of the table, if the files contain only a part of it.
        bases: operation "create": more locations for the table's files.
        partitions: the declaration by which files are cut, bound to `schema`.
        config: operations "create" and "overwrite": settings to add to the table's.
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
        """Return the places of the table's files: those of its newest version, or of the one to be made."""
        return Bases(table, self.bases) if manifest is None else Bases.of(table, manifest.message)


def find_latest(table: TableRef) -> Manifest | None:
    """Return the newest version of the table at `root`; None if there is no table.

    Raises:
        UnsupportedFormatError, FormatError: see `load_latest`.
    """
    try:
        return load_latest(table)
    except TableNotFoundError:
        return None


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
    """Decide how data of the Arrow schema `source` is written to a table.

    Args:
        manifest: its newest version, see `find_latest`; all decisions about one write rest on the same one.
        source: of the data.
        mode: "create" (must not exist), "append" (created if missing) or "overwrite" (likewise).
        data_storage_version: such as "2.1"; by default the table's, or 2.2 for a new one.
        stable_row_ids: for a table to be created; by default, whether it declares a primary key.
        new_columns: the data's columns as a new table would store them; the table gets those that it lacks.
            None refuses them.
        keep_schema: an overwrite keeps the table's columns, and the data must fit them.
        replace_where: an overwrite replaces only the rows that fulfil this, as new rows must.
        replace_using: an overwrite replaces only rows that equal a new row in these columns.
        replace_on: the same by a condition on pairs of rows, and the alias of the table in it.
        replace_partitions: the same for the partitions of the new rows, of which every table has one.
        bases: more places for the files of a table that is to be created, of id 0: they get ids from 1 on.
        in_place: a table may be created among files of other formats.

    Raises:
        ExpressionError: the condition does not fit the table.
        TableExistsError: mode "create", and there is a table.
        SchemaError: the data does not fit the table (append) or cannot be stored at all.
        UnsupportedFormatError: the table uses what is not written here.
        OptionError: a mode or version that does not exist; or `bases` for a table that is there.
        LocationInUseError: there is no table, but there are other files.
    """
    if mode not in MODES:
        raise OptionError(f"write mode {mode!r} does not exist; use one of {', '.join(MODES)}")
    requested_version = None if data_storage_version is None else FileVersion.parse(data_storage_version)
    merges = new_columns is not None
    if manifest is None:
        if not in_place:
            check_location(table)
        version = requested_version or DEFAULT_VERSION
        schema = _new_schema(source if new_columns is None else new_columns, version)
        check = None if replace_where is None else RowCheck.of(replace_where, schema)
        match = _match(replace_using, replace_on, schema, source.names)
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
    columns = manifest.schema if new_columns is None else _with_columns(manifest, new_columns)
    if mode == "append":
        return WritePlan(mode, manifest.version, Aligner(source, columns).schema, version, merges=merges)
    if replace_where is not None:
        check = RowCheck.of(replace_where, columns)
        schema = Aligner(source, columns).schema
        return WritePlan("replace", manifest.version, schema, version, merges=merges, check=check)
    match = _match(replace_using, replace_on, columns, source.names)
    if match is None and replace_partitions and (declared := PartitionSpec.of_config(manifest.config)):
        match = PartitionMatch(declared.bound(columns))
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
    fallback = _fallback(mode, check is not None or match is not None, bases)
    stable = bool(primary_key(schema)) if stable_row_ids is None else stable_row_ids
    places = numbered(bases)
    return WritePlan("create", 0, schema, version, stable, fallback, merges, check, match, bases=places)


def _match(
    using: Sequence[str], on: tuple[str, str] | None, table: Schema, source: Sequence[str]
) -> KeyMatch | PairMatch | PartitionMatch | None:
    """Return which rows of a table a new row replaces; None if it replaces none."""
    if on is not None:
        return PairMatch.of(*on, table, source)
    return KeyMatch.of(using, table, source) if using else None


def _fallback(mode: str, replaces: bool, bases: Sequence[BasePath]) -> str:
    """Return the operation that replaces a creation if another writer's comes first: `WritePlan.fallback`."""
    if mode == "create" or bases:  # Another writer's table would not have the places.
        return ""
    return "replace" if replaces else mode


def _with_columns(manifest: Manifest, columns: pa.Schema) -> Schema:
    """Return the table's schema with those of the columns that it lacks."""
    lacking = missing_columns(Schema.from_arrow(columns), manifest.schema)
    check_added_names(lacking.names)
    return add_fields(manifest, lacking)[0] if lacking.names else manifest.schema


def _new_schema(source: pa.Schema, version: FileVersion, first_id: int = 0) -> Schema:
    """Return the schema of a new table, or of new content, for data of the schema `source`."""
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
    once: IdempotentWrite | None = None,
    pruner_factory: PrunerFactory | None = None,
) -> Manifest:
    """Commit files that were written by `plan`, and return the table's version that holds them.

    Appending nothing commits no more than new columns and returns the version to which it would be added,
    unless it shall be known (`once`) that this was done.

    Args:
        table: the table.
        plan: by which the files were written.
        fragments: what `write_fragments` returned.
        properties: key-value pairs kept with the transaction.
        config: settings of a table that is created by this.
        once: commit only if the same job has not committed this number or a higher one.
        pruner_factory: helps to find the rows that are replaced, see `Snapshot`.

    Raises:
        AlreadyCommittedError: it has. The files are not part of the table.
        TableExistsError: another writer created the table meanwhile (only for mode "create").
        SchemaError: another writer created it with another schema.
        CommitError: a conflict, or an unknown outcome; see its subclasses.
    """
    messages = [table_pb2.DataFragment.FromString(data) for data in fragments]
    config = {**plan.config, **(config or {})}
    if plan.operation == "create":
        try:
            return _create(table, plan, messages, properties, config, once)
        except TableExistsError:
            if not plan.fallback:
                raise
        plan = _after_lost_creation(plan, load_latest(table))
    base = None
    if plan.merges or plan.operation == "replace":
        base = _base(table, plan, once)
        messages = renumbered(fragments, plan.schema, base.schema)
    if plan.check is not None and base is not None:
        at = Snapshot(table, base, pruner_factory)
        return replace_rows(at, plan.check.filter, fragments, plan.schema, properties, once)
    if plan.match is not None and base is not None:
        at = Snapshot(table, base, pruner_factory)
        return replace_matches(at, plan.match, fragments, plan.schema, properties, once)
    if plan.operation == "append" and not messages and once is None:
        return base if base is not None else load_version(table, plan.read_version)
    operation: Message
    if plan.operation == "append":
        operation = append_message(messages)
    else:
        operation = overwrite_message(plan.whole or plan.schema, messages, plan.config)
    return commit_operation(
        table, operation, read_version=plan.read_version, properties=properties, once=once
    )


def _create(
    table: TableRef,
    plan: WritePlan,
    fragments: Sequence[table_pb2.DataFragment],
    properties: Mapping[str, str] | None,
    config: Mapping[str, str] | None,
    once: IdempotentWrite | None,
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
        once=once,
    )


def commit_or_discard(
    table: TableRef,
    plan: WritePlan,
    fragments: Sequence[bytes],
    properties: Mapping[str, str] | None = None,
    config: Mapping[str, str] | None = None,
    once: IdempotentWrite | None = None,
    pruner_factory: PrunerFactory | None = None,
    bases: Bases | None = None,
) -> Manifest:
    """Commit files as `commit_write` does; delete them if it certainly committed nothing.

    Args:
        table, plan, fragments, properties, config, once, pruner_factory: see `commit_write`.
        bases: the locations of files that are not under the table's own root.

    Raises:
        CommitOutcomeUnknownError: the version may exist; no file was deleted.
        LanceError, OSError: see `commit_write`; nothing was committed, and the files were deleted.
    """
    with delete_on_failure(lambda: delete_fragment_files(table, fragments, bases)):
        return commit_write(table, plan, fragments, properties, config, once, pruner_factory)


def _base(table: TableRef, plan: WritePlan, once: IdempotentWrite | None) -> Manifest:
    """Return the version onto which rows go, which has all their columns."""
    latest = load_latest(table)
    if plan.merges and missing_columns(plan.schema, latest.schema).names:
        if once is not None:
            ledger = AppliedWrites()
            ledger.learn(table, latest)
            ledger.refuse(once, table.root)
        return add_missing_columns(Snapshot(table, latest), plan.schema)
    return load_version(table, plan.read_version) if plan.operation == "replace" else latest


def _after_lost_creation(plan: WritePlan, winner: Manifest) -> WritePlan:
    """Return the plan after a lost creation. Files to append have ids that the winner's schema must share."""
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
