"""Iceberg's procedures, with their names, arguments and result columns. A snapshot is a version.

Arguments about the amount of work per step are accepted and have no effect: Spark and the table decide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql import types as st

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import (
    ColumnNotFoundError,
    OptionError,
    UnsupportedFormatError,
    VersionNotFoundError,
    suggestion,
)
from spark_lance.io.locations import join
from spark_lance.spark.sql.catalogs import BridgeRequest, catalog_name
from spark_lance.spark.sql.foreign_tables import migrate_table, register_table, snapshot_table, source_rows
from spark_lance.spark.sql.procedure import Parameter, Procedure, current_namespace, idle, refused, texts
from spark_lance.spark.table.expressions import quoted
from spark_lance.spark.table.maintaining import Optimizing
from spark_lance.spark.table.staging import ENABLED, wap_branch
from spark_lance.spark.table.table import LanceTable
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.inserts.publish_branch import MAIN, publish_branch
from spark_lance.table.maintenance.retention import (
    MAX_REF_AGE,
    MAX_SNAPSHOT_AGE,
    MIN_SNAPSHOTS,
    check_deletion,
    expiry_setting,
    min_retention,
)
from spark_lance.table.reading.version_changes import FEED_COLUMNS
from spark_lance.table.schema.keys import primary_key
from spark_lance.table.versions.branches import Branches, branch_line
from spark_lance.table.versions.resolve import BranchReader, version_as_of_time
from spark_lance.table.versions.retention import drop_expired_refs
from spark_lance.table.versions.versions import latest_version, list_versions

if TYPE_CHECKING:
    pass

_RESTORE_COLUMNS = "previous_snapshot_id bigint, current_snapshot_id bigint"
_DAY = 24 * 3600 * 1000
_UNVERIFIED_DAYS = 7


def _utc_time(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1e6, timezone.utc)


def _create_frame(request: BridgeRequest, rows: Sequence[tuple[Any, ...]], columns: str) -> DataFrame:
    return request.spark.createDataFrame(list(rows), columns)


def _restore(request: BridgeRequest, table: LanceTable, version: int) -> DataFrame:
    before = table.version
    table.restoreToVersion(version).collect()
    return _create_frame(request, [(before, table.version)], _RESTORE_COLUMNS)


def _rollback_to_snapshot(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    return _restore(request, table, int(a["snapshot_id"]))


def _rollback_to_timestamp(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    dataset = table.dataset()
    version = version_as_of_time(dataset.table, _utc_time(a["timestamp"]))
    return _restore(request, table, version)


def _set_current_snapshot(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    if (a["snapshot_id"] is None) == (a["ref"] is None):
        raise OptionError("set_current_snapshot needs a snapshot_id or a ref: ref => 'tag'")
    if a["snapshot_id"] is not None:
        return _restore(request, table, int(a["snapshot_id"]))
    tags = table.tags.list()
    if a["ref"] not in tags and a["ref"] in table.branches.list():
        raise UnsupportedFormatError(
            f"{a['ref']!r} is a branch, which is published: CALL "
            f"{request.catalog.name}.system.fast_forward('<table>', 'main', '{a['ref']}')"
        )
    before = table.version
    table.restoreToTag(a["ref"]).collect()
    return _create_frame(request, [(before, table.version)], _RESTORE_COLUMNS)


def _ancestors_of(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    dataset = table.dataset()
    newest = dataset.version if a["snapshot_id"] is None else int(a["snapshot_id"])
    dataset.checkout_version(newest)
    rows = table.read(table="versions").where(f"version <= {newest}").orderBy(f.desc("version"))
    return rows.selectExpr("version AS snapshot_id", "unix_millis(timestamp) AS timestamp")


def _expire_snapshots(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    dataset = table.dataset()
    manifest = dataset.manifest
    check_deletion(manifest)
    max_ref_age = expiry_setting(manifest, MAX_REF_AGE)
    if a["retain_last"] is not None and a["retain_last"] < 1:
        raise OptionError(f"retain_last is a number of snapshots, 1 or more, not {a['retain_last']}")
    selection: dict[str, Any]
    if a["snapshot_ids"] is not None:
        numbers = [int(number) for number in a["snapshot_ids"]]
        present = {file.version for file in list_versions(dataset.table)}
        if missing := sorted(set(numbers) - present):
            raise OptionError(
                f"snapshot {missing[0]} does not exist (available: {min(present)} to {max(present)})"
            )
        if dataset.version in numbers:
            raise OptionError(f"snapshot {dataset.version} is the newest and cannot expire: leave it out")
        selection = {"versions": numbers}
    else:
        selection = {
            "older_than": _expiry_age(request, dataset, a["older_than"]),
            "retain_versions": max(1, a["retain_last"] or expiry_setting(manifest, MIN_SNAPSHOTS) or 1),
        }
    # Only now, because a refused call must change nothing.
    drop_expired_refs(dataset.main_line, max_ref_age)
    stats = dataset.cleanup_old_versions(**selection, error_if_tagged_old_versions=False)
    row = (stats.data_files_removed, stats.deletion_files_removed, 0, stats.old_versions, 0, 0)
    return _create_frame(
        request,
        [row],
        "deleted_data_files_count bigint, deleted_position_delete_files_count bigint, "
        "deleted_equality_delete_files_count bigint, deleted_manifest_files_count bigint, "
        "deleted_manifest_lists_count bigint, deleted_statistics_files_count bigint",
    )


def _expiry_age(request: BridgeRequest, dataset: LanceDataset, older_than: int | None) -> timedelta:
    """Return the age above which versions expire. The caller, the table or a default of five days sets it.

    Raises:
        OptionError: readers could still need versions of this age.
    """
    if older_than is None:
        return timedelta(milliseconds=expiry_setting(dataset.manifest, MAX_SNAPSHOT_AGE) or 5 * _DAY)
    age = datetime.now(timezone.utc) - _utc_time(older_than)
    least = min_retention(dataset.manifest)
    if age < least:
        raise OptionError(
            f"older_than is less than {least / timedelta(hours=1):g} hours ago, and readers of younger "
            "versions would lose their files. If there are none: CALL "
            f"{request.catalog.name}.system.vacuum('<table>', "
            f"retention_hours => {max(0.0, age / timedelta(hours=1)):.2f}, allow_short_retention => true)"
        )
    return age


def _remove_orphan_files(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    if a["file_list_view"] is not None:
        raise UnsupportedFormatError(
            "remove_orphan_files lists the table's folders itself: leave out file_list_view"
        )
    if str(a["prefix_mismatch_mode"]).upper() not in ("ERROR", "IGNORE", "DELETE"):
        raise OptionError("prefix_mismatch_mode must be ERROR, IGNORE or DELETE")
    if a["older_than"] is not None:
        age = datetime.now(timezone.utc) - _utc_time(a["older_than"])
        if age < timedelta(days=_UNVERIFIED_DAYS):
            raise OptionError(
                f"a file younger than {_UNVERIFIED_DAYS} days may belong to an unfinished commit: leave out "
                "older_than, or while nobody writes, run "
                f"CALL {request.catalog.name}.system.vacuum('<table>', delete_unverified => true)"
            )
    dataset = table.dataset()
    if not a["dry_run"]:
        check_deletion(dataset.manifest)
    if a["location"] is not None and not _is_in_table(dataset, str(a["location"])):
        raise OptionError(
            f"location {a['location']!r} is not in the table's folder, {table.path}: leave out location"
        )
    # No version has number 0, so this selects only files that no version uses.
    stats = dataset.cleanup_old_versions(versions=[0], dry_run=True)
    orphans = [file.path for file in stats.files if file.unverified]
    files = orphans
    if a["older_than"] is not None or a["location"] is not None:
        limit = None if a["older_than"] is None else _utc_time(a["older_than"])
        place = None if a["location"] is None else _resolve_location(dataset, str(a["location"]))
        files = _filter_files(dataset, orphans, limit, place)
        if not a["dry_run"] and files != orphans:
            raise OptionError(
                "some orphan files are newer than older_than or outside of location, and would be deleted, "
                "too: leave out older_than and location, or add dry_run => true"
            )
    if not a["dry_run"]:
        dataset.cleanup_old_versions(versions=[0])
    return _create_frame(
        request, [(dataset.store.uri(path),) for path in files], "orphan_file_location string"
    )


def _resolve_location(dataset: LanceDataset, location: str) -> str:
    bare = re.sub(r"^[a-z0-9]+:(?://)?", "", location).rstrip("/")
    return bare if location.startswith("/") or ":" in location else join(dataset.root, bare)


def _is_in_table(dataset: LanceDataset, location: str) -> bool:
    place = _resolve_location(dataset, location)
    return place == dataset.root or place.startswith(f"{dataset.root}/")


def _filter_files(
    dataset: LanceDataset, paths: Sequence[str], limit: datetime | None, place: str | None
) -> list[str]:
    """Return the files below a folder that are older than a time, in the given order."""
    inside = [path for path in paths if place is None or path.startswith(f"{place}/")]
    if limit is None:
        return inside
    ages = {}
    for folder in {path.rpartition("/")[0] for path in inside}:
        ages.update({entry.path: entry.modified for entry in dataset.store.list_objects(folder)})
    moments = {path: ages.get(path) for path in inside}
    return [path for path, modified in moments.items() if modified is not None and modified < limit]


_REWRITE_OPTIONS = {
    "target-file-size-bytes": "maxBytesPerFile",
    "delete-ratio-threshold": "materializeDeletionsThreshold",
}
# Options without effect: Spark and the table decide.
_WITHOUT_EFFECT = frozenset(
    {
        *("max-concurrent-file-group-rewrites", "partial-progress.enabled", "partial-progress.max-commits"),
        *("partial-progress.max-failed-commits", "use-starting-sequence-number", "rewrite-job-order"),
        *("min-file-size-bytes", "max-file-size-bytes", "min-input-files", "max-file-group-size-bytes"),
        *("remove-dangling-deletes", "compression-factor", "shuffle-partitions-per-file"),
        *("var-length-contribution", "max-output-size", "delete-file-threshold"),
    }
)
_ZORDER = re.compile(r"\s*zorder\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)


def _rewrite_data_files(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    strategy = str(a["strategy"] or ("sort" if a["sort_order"] else "binpack")).lower()
    if strategy not in ("binpack", "sort"):
        raise OptionError(f"strategy must be binpack or sort, not {a['strategy']!r}")
    if strategy == "binpack" and a["sort_order"]:
        raise OptionError("sort_order is for the strategy sort: strategy => 'sort'")
    if a["branch"] not in (None, MAIN):
        table = LanceTable.forPath(request.spark, table.path, **{**table.options, "branch": a["branch"]})
    before = table.dataset()
    work = _rewrite_with(table, a["options"] or {})
    if a["where"] is not None:
        work = work.where(a["where"])
    if strategy == "binpack":
        work.executeCompaction().collect()
    elif match := _ZORDER.fullmatch(a["sort_order"] or ""):
        work.executeZOrderBy(*texts(match[1])).collect()
    else:
        order = a["sort_order"] or before.config().get("sort-order")
        if not order:
            raise OptionError(
                "the table has no sort order: sort_order => 'id DESC NULLS LAST', or first ALTER TABLE t "
                "WRITE ORDERED BY id"
            )
        work.executeSortBy(*texts(order)).collect()
    row = _rewrite_counts(before.manifest, table.dataset().manifest)
    return _create_frame(
        request,
        [row],
        "rewritten_data_files_count int, added_data_files_count int, rewritten_bytes_count bigint, "
        "failed_data_files_count int, removed_delete_files_count int",
    )


def _rewrite_with(table: LanceTable, options: Mapping[str, str]) -> Optimizing:
    values: dict[str, Any] = {}
    for name, text in options.items():
        if name in _WITHOUT_EFFECT or (name == "rewrite-all" and text.lower() == "false"):
            continue
        if name not in _REWRITE_OPTIONS:
            choices = ", ".join(sorted([*_REWRITE_OPTIONS, *_WITHOUT_EFFECT]))
            remedy = (
                "strategy => 'sort' rewrites all files" if name == "rewrite-all" else f"there are {choices}"
            )
            raise OptionError(f"option {name!r} of rewrite_data_files is not supported: {remedy}")
        try:
            values[_REWRITE_OPTIONS[name]] = int(text) if "bytes" in name else float(text)
        except ValueError:
            raise OptionError(
                f"option {name!r} of rewrite_data_files must be a number, not {text!r}"
            ) from None
    return table.optimize(**values)


def _rewrite_counts(before: Manifest, after: Manifest) -> tuple[int, int, int, int, int]:
    old = {file.path: file for fragment in before.fragments for file in fragment.files}
    new = {file.path: file for fragment in after.fragments for file in fragment.files}
    ids = {fragment.id for fragment in after.fragments if fragment.HasField("deletion_file")}
    removed = [x for x in before.fragments if x.HasField("deletion_file") and x.id not in ids]
    size = sum(old[path].file_size_bytes for path in old.keys() - new.keys())
    return len(old.keys() - new.keys()), len(new.keys() - old.keys()), size, 0, len(removed)


def _rewrite_manifests(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    # Every version has one manifest, and every commit writes it completely.
    return _create_frame(request, [(0, 0)], "rewritten_manifests_count int, added_manifests_count int")


def _rewrite_position_delete_files(
    request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]
) -> DataFrame:
    # A fragment has at most one deletion file, and compaction removes deleted rows together with their marks.
    return _create_frame(
        request,
        [(0, 0, 0, 0)],
        "rewritten_delete_files_count int, added_delete_files_count int, rewritten_bytes_count bigint, "
        "added_bytes_count bigint",
    )


def _add_files(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    if a["check_duplicate_files"]:
        raise UnsupportedFormatError(
            "add_files copies rows and keeps no list of the files that they came from: leave out "
            "check_duplicate_files"
        )
    source = source_rows(request, a["source_table"])
    for column, value in (a["partition_filter"] or {}).items():
        source = source.where(f.col(column) == f.lit(value))
    before = {file.path for x in table.dataset().manifest.fragments for file in x.files}
    source.select(*_table_columns(source, table)).write.format("lance").options(**table.options).mode(
        "append"
    ).save(table.path)
    after = {file.path for x in table.dataset().manifest.fragments for file in x.files}
    return _create_frame(
        request, [(len(after - before), None)], "added_files_count bigint, changed_partition_count bigint"
    )


def _table_columns(source: DataFrame, table: LanceTable) -> list[str]:
    names = table.toDF().columns
    present = {name.lower() for name in source.columns}
    if missing := [name for name in names if name.lower() not in present]:
        raise OptionError(
            f"the files have no column {missing[0]!r}; they have {', '.join(source.columns)}: add it by "
            "INSERT INTO t SELECT ..., with a value for it"
        )
    return names


def _no_statistics(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    index = f"'{a['named']}', '{next(iter(a.get('columns') or ()), '<column>')}', 'ZONEMAP'"
    raise UnsupportedFormatError(
        f"data files have statistics; CALL {request.catalog.name}.system.create_index({index}) adds ranges"
    )


def _no_table_paths(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    raise UnsupportedFormatError(
        "a Lance table has paths relative to its folder, so there is nothing to rewrite: copy the folder, or "
        f"write CREATE TABLE {request.catalog.name}.`{a['target_prefix']}` DEEP CLONE {a['named']}"
    )


def _fast_forward(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    return _publish(request, table, a["to"], a["branch"])


def _publish(request: BridgeRequest, table: LanceTable, branch: str, target: str) -> DataFrame:
    dataset = table.dataset()
    for name in (branch, target):
        if name != MAIN:
            Branches(dataset.main_line).get(name)
    versions = publish_branch(dataset.main_line, branch, target)
    return _create_frame(
        request,
        [(target, versions.before, versions.after)],
        "branch_updated string, previous_ref bigint, updated_ref bigint",
    )


def _publish_changes(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    branch = wap_branch(a["wap_id"])
    if branch not in table.branches.list():
        raise OptionError(
            f"there is no branch {branch!r}: SET spark.wap.id = {a['wap_id']} before writes to a table with "
            f"the property {ENABLED}, or ALTER TABLE t CREATE BRANCH `{branch}`, and INSERT INTO "
            f"db.t.`branch_{branch}`"
        )
    dataset = table.dataset()
    # The branch is deleted after its publication, so check first that this is possible.
    Branches(dataset.main_line).check_unused(branch)
    row = _publish(request, table, branch, MAIN).first()
    assert row is not None
    table.branches.delete(branch)
    columns = "source_snapshot_id bigint, current_snapshot_id bigint"
    return _create_frame(request, [(row.previous_ref, row.updated_ref)], columns)


def _cherrypick_snapshot(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    number, dataset = int(a["snapshot_id"]), table.dataset()
    branches = Branches(dataset.main_line).list()
    names = [name for name, record in branches.items() if _has_own_version(dataset, name, record, number)]
    names = [name for name in names if a["branch"] in (None, name)]
    if len(names) > 1:
        raise OptionError(
            f"branches {', '.join(sorted(names))} each have a version {number}: name one, "
            f"branch => '{names[0]}'"
        )
    if not names:
        name, text = request.catalog.name, a["named"]
        refs = quoted(*catalog_name(request.catalog, text, current_namespace(request)), "refs")
        raise OptionError(
            f"no branch has a version {number} of its own: SELECT * FROM {name}.{refs} has their newest. For "
            f"an older one of the table CALL {name}.system.rollback_to_snapshot('{text}', {number})"
        )
    after = publish_branch(dataset.main_line, names[0], version=number).after
    return _create_frame(request, [(number, after)], "source_snapshot_id bigint, current_snapshot_id bigint")


def _has_own_version(dataset: LanceDataset, branch: str, record: Mapping[str, Any], number: int) -> bool:
    """Return whether a branch has a version that its parent line does not have."""
    newest = latest_version(branch_line(dataset.main_line, branch)).version
    return int(record["parent_version"]) < number <= newest


def _create_changelog_view(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> DataFrame:
    keys = list(a["identifier_columns"] or ())
    updates = bool(keys) if a["compute_updates"] is None else bool(a["compute_updates"])
    if updates and a["net_changes"]:
        raise OptionError("net_changes has no updates: leave out compute_updates and identifier_columns")
    if updates and not keys:
        keys = texts(table.config.get("identifier-fields", ""))
    if updates and not keys:
        keys = [field.name for field in primary_key(table.dataset().manifest.schema)]
    if updates and not keys:
        raise OptionError("compute_updates needs identifier_columns => array('id')")
    rows = _read_changes(table, a["options"] or {})
    columns = [name for name in rows.columns if name not in FEED_COLUMNS]
    for key in keys if updates else []:
        if key.lower() not in (name.lower() for name in columns):
            raise ColumnNotFoundError(
                f"identifier_columns has {key!r}; there are {', '.join(columns)}{suggestion(key, columns)}"
            )
    rows = _iceberg_changes(rows, keys if updates else [], columns)
    if a["net_changes"]:
        rows = _net_changes(rows, columns)
    elif not updates:
        rows = _without_carryovers(rows, columns)
    name = a["changelog_view"] or f"{_last_part(request, a['named'])}_changes"
    rows.createOrReplaceTempView(f"`{name}`")
    return _create_frame(request, [(name,)], "changelog_view string")


def _last_part(request: BridgeRequest, text: str) -> str:
    return catalog_name(request.catalog, text, current_namespace(request))[-1].rpartition("/")[2]


def _read_changes(table: LanceTable, options: Mapping[str, str]) -> DataFrame:
    """Return the change feed between the versions or times in Iceberg's options."""
    names = ("start-snapshot-id", "end-snapshot-id", "start-timestamp", "end-timestamp")
    for name, text in options.items():
        if name not in names or not text.isdigit():
            raise OptionError(
                f"option {name!r} = {text!r} is not supported: set a number for {', '.join(names)}"
            )
    dataset = table.dataset()
    versions = [file.version for file in list_versions(dataset.table)]
    start, end = options.get("start-snapshot-id"), options.get("end-snapshot-id")
    first = min(versions) if start is None else int(start) + 1
    last = dataset.version if end is None else int(end)
    if (after := options.get("start-timestamp")) is not None:
        first = 1 + _version_before(dataset, int(after), min(versions) - 1)
    if (until := options.get("end-timestamp")) is not None:
        last = _version_before(dataset, int(until), min(versions) - 1)
    if first > last:
        # No version is in the range, but the result needs the schema of a feed.
        return table.read(readChangeFeed="true", startingVersion=dataset.version).where("false")
    try:
        BranchReader(dataset.table).require(first, last)
    except VersionNotFoundError as error:
        later = re.search(r"startingVersion (\d+)", str(error))
        remedy = f": options => map('start-snapshot-id', '{int(later[1]) - 1}')" if later else ""
        raise VersionNotFoundError(f"{error}{remedy}") from None
    return table.read(readChangeFeed="true", startingVersion=first, endingVersion=last)


def _version_before(dataset: LanceDataset, millis: int, otherwise: int) -> int:
    moment = _utc_time(millis * 1000)
    versions = dataset.versions()
    return max((v["version"] for v in versions if _in_utc(v["timestamp"]) <= moment), default=otherwise)


def _in_utc(moment: datetime) -> datetime:
    return moment.astimezone(timezone.utc)


_TYPES = {
    "insert": "INSERT",
    "delete": "DELETE",
    "update_preimage": "DELETE",
    "update_postimage": "INSERT",
}


# Types that Spark cannot use in PARTITION BY of a window. It can use all but variants in GROUP BY.
_UNORDERED = frozenset({"map", "variant", "interval", "geometry", "geography"})


def _iceberg_changes(rows: DataFrame, keys: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """Return changes with Iceberg's columns. With keys, a delete and an insert of one key are an update."""
    kind = f.col("_change_type")
    name = f.lit(None).cast("string")
    for theirs, ours in _TYPES.items():
        name = f.when(kind == theirs, ours).otherwise(name)
    plain = rows.withColumn("_change_type", name).withColumnRenamed("_commit_version", "_commit_snapshot_id")
    order = f.dense_rank().over(Window.orderBy("_commit_snapshot_id")) - 1
    plain = plain.withColumn("_change_ordinal", order.cast("int")).drop("_commit_timestamp")
    if keys:
        plain = _without_carryovers(plain, columns)
        same = Window.partitionBy("_commit_snapshot_id", *(f"`{key}`" for key in keys))
        both = f.size(f.collect_set("_change_type").over(same)) == 2
        update = f.when(f.col("_change_type") == "DELETE", "UPDATE_BEFORE").otherwise("UPDATE_AFTER")
        plain = plain.withColumn("_change_type", f.when(both, update).otherwise(f.col("_change_type")))
    feed = ("_change_type", "_change_ordinal", "_commit_snapshot_id")
    return plain.select(*(f"`{name}`" for name in plain.columns if name not in feed), *feed)


def _without_carryovers(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return changes without pairs of a delete and an insert of the same values in one version.

    If a column has a type that windows cannot compare, such as a map, all changes are returned.
    """
    if _columns_with_types(rows, columns, _UNORDERED):
        return rows
    same = ["_commit_snapshot_id", *(f"`{name}`" for name in columns)]
    pair = Window.partitionBy(*same)
    inserts = f.count(f.when(f.col("_change_type") == "INSERT", 1)).over(pair)
    deletes = f.count(f.when(f.col("_change_type") == "DELETE", 1)).over(pair)
    number = f.row_number().over(Window.partitionBy(*same, "_change_type").orderBy(f.lit(1)))
    numbered_rows = rows.withColumn("_number", number).withColumn("_pairs", f.least(inserts, deletes))
    return numbered_rows.where("_number > _pairs").drop("_number", "_pairs")


def _columns_with_types(rows: DataFrame, columns: Sequence[str], names: frozenset[str]) -> list[str]:
    """Return the columns that have one of these types, or contain one."""
    return [column for column in columns if _contains_type(rows.schema[column].dataType, names)]


def _contains_type(kind: st.DataType, names: frozenset[str]) -> bool:
    parts: list[st.DataType] = []
    if isinstance(kind, st.StructType):
        parts = [field.dataType for field in kind]
    elif isinstance(kind, st.ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, st.MapType):
        parts = [kind.keyType, kind.valueType]
    return kind.typeName() in names or any(_contains_type(part, names) for part in parts)


def _net_changes(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the changes without rows that were added and deleted.

    Raises:
        UnsupportedFormatError: a column contains variants, which Spark cannot compare.
    """
    if names := _columns_with_types(rows, columns, frozenset({"variant"})):
        raise UnsupportedFormatError(
            f"net_changes compares whole rows, and Spark cannot compare variants, as in column {names[0]!r}: "
            "leave out net_changes"
        )
    sign = f.when(f.col("_change_type") == "INSERT", 1).otherwise(-1)
    grouped = rows.groupBy(*(f"`{name}`" for name in columns)).agg(
        f.sum(sign).alias("_count"),
        f.max("_change_ordinal").alias("_change_ordinal"),
        f.max("_commit_snapshot_id").alias("_commit_snapshot_id"),
    )
    changed = grouped.where("_count <> 0").withColumn("_copy", f.expr("explode(sequence(1, abs(_count)))"))
    kind = f.when(f.col("_count") > 0, "INSERT").otherwise("DELETE").alias("_change_type")
    return changed.select(*(f"`{name}`" for name in columns), kind, "_change_ordinal", "_commit_snapshot_id")


_SNAPSHOT_ID = Parameter("snapshot_id", "bigint", "version number")
_OLDER_THAN = Parameter("older_than", "timestamp", "only files older than this time", "NULL")
_WHERE = Parameter("where", "string", "only files with a row for which this is true", "NULL")
_OPTIONS = Parameter("options", "map<string, string>", "options by Iceberg's names", "NULL")
_IDLE = idle(max_concurrent_deletes="int", stream_results="boolean")
_NEW = Parameter("table", "string", "the new table's name in the catalog")
_PARALLELISM = Parameter("parallelism", "int", "does nothing", "NULL")
_MISSING_FILES = Parameter("ignore_missing_files", "boolean", "not supported", "false")
_STATISTICS = (
    Parameter("snapshot_id", "string", "version number", "NULL"),
    Parameter("columns", "array<string>", "columns", "NULL"),
)

_RESTORED = ("previous_snapshot_id, current_snapshot_id",)
_PUBLISHED = ("source_snapshot_id, current_snapshot_id",)

ICEBERG_PROCEDURES: dict[str, Procedure] = {
    "rollback_to_snapshot": Procedure(
        _rollback_to_snapshot, (_SNAPSHOT_ID,), "Restore an older version.", results=_RESTORED
    ),
    "rollback_to_timestamp": Procedure(
        _rollback_to_timestamp,
        (Parameter("timestamp", "timestamp", "a time"),),
        "Restore the newest version at a time.",
        results=_RESTORED,
    ),
    "set_current_snapshot": Procedure(
        _set_current_snapshot,
        (
            Parameter("snapshot_id", "bigint", "version number", "NULL"),
            Parameter("ref", "string", "a tag, instead of a number", "NULL"),
        ),
        "Restore a version.",
        results=_RESTORED,
    ),
    "ancestors_of": Procedure(
        _ancestors_of,
        (Parameter("snapshot_id", "bigint", "version number; by default the newest", "NULL"),),
        "Return a version and the versions before it, newest first.",
        results=("snapshot_id, timestamp",),
    ),
    "expire_snapshots": Procedure(
        _expire_snapshots,
        (
            Parameter(
                "older_than", "timestamp", "only versions older than this; by default five days ago", "NULL"
            ),
            Parameter("retain_last", "int", "number of newest versions to keep; by default 1", "NULL"),
            *_IDLE,
            Parameter("snapshot_ids", "array<bigint>", "numbers of versions, instead of an age", "NULL"),
            Parameter("clean_expired_metadata", "boolean", "does nothing", "NULL"),
        ),
        "Delete old versions and their files, and expired branches and tags.",
        results=(
            "deleted_data_files_count, deleted_position_delete_files_count, "
            "deleted_equality_delete_files_count, deleted_manifest_files_count, "
            "deleted_manifest_lists_count, deleted_statistics_files_count",
        ),
    ),
    "remove_orphan_files": Procedure(
        _remove_orphan_files,
        (
            _OLDER_THAN,
            Parameter("location", "string", "the table's folder, or one in it", "NULL"),
            Parameter("dry_run", "boolean", "delete nothing", "false"),
            _IDLE[0],
            Parameter("file_list_view", "string", "not supported", "NULL"),
            *idle(equal_schemes="map<string, string>", equal_authorities="map<string, string>"),
            Parameter("prefix_mismatch_mode", "string", "does nothing", "'ERROR'"),
            Parameter("prefix_listing", "boolean", "does nothing", "NULL"),
            _IDLE[1],
        ),
        "Delete and return unreferenced files that are older than seven days.",
        results=("orphan_file_location",),
    ),
    "rewrite_data_files": Procedure(
        _rewrite_data_files,
        (
            Parameter("strategy", "string", "binpack or sort", "NULL"),
            Parameter("sort_order", "string", "columns with ASC, DESC, NULLS LAST; or zorder(a, b)", "NULL"),
            _OPTIONS,
            _WHERE,
            Parameter("branch", "string", "the branch to rewrite", "NULL"),
        ),
        "Merge small files, or write the rows in another order.",
        results=(
            "rewritten_data_files_count, added_data_files_count, rewritten_bytes_count, "
            "failed_data_files_count, removed_delete_files_count",
        ),
    ),
    "rewrite_manifests": Procedure(
        _rewrite_manifests,
        idle(use_caching="boolean", spec_id="int", sort_by="array<string>"),
        "Do nothing, as each version has one manifest.",
        results=("rewritten_manifests_count, added_manifests_count",),
    ),
    "rewrite_position_delete_files": Procedure(
        _rewrite_position_delete_files,
        (_OPTIONS, _WHERE),
        "Do nothing, as a fragment has at most one deletion file.",
        results=(
            "rewritten_delete_files_count, added_delete_files_count, rewritten_bytes_count, "
            "added_bytes_count",
        ),
    ),
    "snapshot": Procedure(
        snapshot_table,
        (
            Parameter("source_table", "string", "a table of any catalog"),
            _NEW,
            Parameter("location", "string", "not supported", "NULL"),
            Parameter("properties", "map<string, string>", "TBLPROPERTIES", "NULL"),
            _PARALLELISM,
            _MISSING_FILES,
        ),
        "Copy a table of any format to a new Lance table.",
        on_table=False,
        results=("imported_files_count",),
    ),
    "migrate": Procedure(
        migrate_table,
        (
            Parameter("table", "string", "a table of spark_catalog in another format"),
            Parameter("properties", "map<string, string>", "TBLPROPERTIES", "NULL"),
            Parameter("drop_backup", "boolean", "drop the old table", "false"),
            Parameter(
                "backup_table_name", "string", "name of the backup; by default <table>_BACKUP_", "NULL"
            ),
            _PARALLELISM,
            _MISSING_FILES,
        ),
        "Replace a table of spark_catalog with a Lance table. The old table is kept as a backup.",
        on_table=False,
        results=("migrated_files_count",),
    ),
    "add_files": Procedure(
        _add_files,
        (
            Parameter("source_table", "string", "a table, or files such as `parquet`.`/path`"),
            Parameter("partition_filter", "map<string, string>", "copy only rows with these values", "NULL"),
            Parameter("check_duplicate_files", "boolean", "not supported", "NULL"),
            _PARALLELISM,
        ),
        "Append the rows of a table or of files.",
        results=("added_files_count, changed_partition_count",),
    ),
    "register_table": Procedure(
        register_table,
        (_NEW, Parameter("metadata_file", "string", "folder of a Lance table, inside the catalog's root")),
        "Give an existing table a name.",
        results=("current_snapshot_id, total_records_count, total_data_files_count",),
        on_table=False,
    ),
    "create_changelog_view": Procedure(
        _create_changelog_view,
        (
            Parameter("changelog_view", "string", "name of the view; by default <table>_changes", "NULL"),
            _OPTIONS,
            Parameter(
                "compute_updates", "boolean", "join the delete and insert of a key to an update", "NULL"
            ),
            Parameter("identifier_columns", "array<string>", "the key", "NULL"),
            Parameter("net_changes", "boolean", "leave out rows that were added and then deleted", "false"),
        ),
        "Create a temporary view of the changed rows.",
        results=("changelog_view",),
    ),
    "compute_table_stats": refused(_no_statistics, *_STATISTICS),
    "compute_partition_stats": refused(_no_statistics, *_STATISTICS[:1]),
    "rewrite_table_path": refused(
        _no_table_paths,
        Parameter("source_prefix", "string", "the old place"),
        Parameter("target_prefix", "string", "the new place"),
        *(
            Parameter(name, "string", "not used", "NULL")
            for name in ("start_version", "end_version", "staging_location")
        ),
        Parameter("create_file_list", "boolean", "not used", "NULL"),
    ),
    "fast_forward": Procedure(
        _fast_forward,
        (
            Parameter("branch", "string", "target: main, or a branch"),
            Parameter("to", "string", "branch to publish"),
        ),
        "Publish a branch.",
        results=("branch_updated, previous_ref, updated_ref",),
    ),
    "publish_changes": Procedure(
        _publish_changes,
        (Parameter("wap_id", "string", "the id"),),
        "Publish and drop the branch wap-<id>.",
        results=_PUBLISHED,
    ),
    "cherrypick_snapshot": Procedure(
        _cherrypick_snapshot,
        (
            _SNAPSHOT_ID,
            Parameter("branch", "string", "the branch, if several branches have this version", "NULL"),
        ),
        "Publish the next unpublished version of a branch.",
        results=_PUBLISHED,
    ),
}
