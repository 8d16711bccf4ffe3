"""Maintenance commands: compact, vacuum, verify, restore, and the groups index, tags and branches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from spark_lance.cli.commands import Arguments
from spark_lance.cli.opening import open_table, parse_reference
from spark_lance.cli.output import Progress, as_json, print_pairs, print_table, say
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.index import list_extendable_indexes
from spark_lance.datasets.maintain import Compaction
from spark_lance.errors import OptionError, suggestion
from spark_lance.index.scalar.kinds import SCALAR_INDICES
from spark_lance.index.vector.storage import INDEX_TYPES
from spark_lance.io.display import size_text
from spark_lance.io.progress import reporting
from spark_lance.table.format.manifest import read_manifest
from spark_lance.table.maintenance.compact import CompactionPlan
from spark_lance.table.maintenance.retention import check_deletion, guarded_age
from spark_lance.table.maintenance.verify import Repair, repair, verify
from spark_lance.table.versions.ages import parse_duration
from spark_lance.table.versions.cleanup import CleanupFile
from spark_lance.table.versions.resolve import Reference
from spark_lance.table.versions.versions import list_versions


def list_tags(arguments: Arguments) -> int:
    """Show the tags of a table."""
    return _show("tag", open_table(arguments).tags.list(), ("branch", "version"), arguments)


def create_tag(arguments: Arguments) -> int:
    """Create a tag for a version."""
    dataset = open_table(arguments)
    dataset.tags.create(arguments.name, _reference(arguments))
    return _say_name(arguments, f"tag {arguments.name}", dataset.tags.list()[arguments.name]["version"])


def update_tag(arguments: Arguments) -> int:
    """Move a tag to another version."""
    dataset = open_table(arguments)
    dataset.tags.update(arguments.name, _reference(arguments))
    return _say_name(arguments, f"tag {arguments.name}", dataset.tags.list()[arguments.name]["version"])


def delete_tag(arguments: Arguments) -> int:
    """Delete a tag; its version stays."""
    open_table(arguments).tags.delete(arguments.name)
    return _say_name(arguments, f"deleted tag {arguments.name}")


def list_branches(arguments: Arguments) -> int:
    """Show the branches of a table."""
    branches = open_table(arguments).branches.list()
    return _show("branch", branches, ("parent_branch", "parent_version"), arguments)


def create_branch(arguments: Arguments) -> int:
    """Create a branch at a version."""
    dataset = open_table(arguments).create_branch(arguments.name, _reference(arguments))
    return _say_name(arguments, f"branch {arguments.name}", dataset.version)


def delete_branch(arguments: Arguments) -> int:
    """Delete a branch and the versions that are only on it."""
    open_table(arguments).branches.delete(arguments.name)
    return _say_name(arguments, f"deleted branch {arguments.name}")


def restore(arguments: Arguments) -> int:
    """Make the content of an old version the newest version."""
    dataset: LanceDataset = open_table(arguments)
    old = dataset.checkout_version(parse_reference(arguments.to))
    return _say_name(arguments, f"restored version {old.version}", old.restore().version)


def _reference(arguments: Arguments) -> Reference | None:
    return None if arguments.to is None else parse_reference(arguments.to)


def _show(
    kind: str, references: dict[str, dict[str, Any]], names: tuple[str, ...], arguments: Arguments
) -> int:
    if arguments.json:
        say(as_json(references))
    elif references:
        rows = [(name, *(each.get(column) or ("main" if "branch" in column else None) for column in names))
                for name, each in references.items()]  # fmt: skip
        print_table((kind, *(name.replace("_", " ") for name in names)), rows, wide=arguments.wide)
    else:
        say("none")
    return 0


def _say_name(arguments: Arguments, what: str, version: int | None = None) -> int:
    if arguments.json:
        say(as_json({"done": what, "version": version}))
    else:
        say(what if version is None else f"{what}: version {version}")
    return 0


def list_indices(arguments: Arguments) -> int:
    """Show the indexes of a table, and how many rows each index covers."""
    dataset = open_table(arguments)
    total = dataset.count_rows()
    rows: list[dict[str, Any]] = [
        {
            "index": index.name,
            "type": index.index_type,
            "columns": list(index.field_names),
            "segments": len(index.segments),
            "rows": index.num_rows_indexed,
            "share": None if index.num_rows_indexed is None else index.num_rows_indexed / max(total, 1),
            "bytes": index.total_size_bytes,
        }
        for index in dataset.describe_indices()
        if index.fields
    ]
    if arguments.json:
        say(as_json(rows))
    elif rows:
        texts = [
            {
                **row,
                "share": None if row["share"] is None else f"{row['share']:.0%}",
                "bytes": size_text(row["bytes"]),
            }
            for row in rows
        ]
        print_table(tuple(rows[0]), [tuple(row.values()) for row in texts], wide=arguments.wide)
    else:
        say("none")
    return 0


def build_index(arguments: Arguments) -> int:
    """Build an index over a column."""
    dataset = open_table(arguments)
    kind = arguments.type.upper()
    options = _index_options(arguments.option)
    common: dict[str, Any] = {"name": arguments.name, "replace": arguments.replace}
    with Progress("building") as progress, reporting(progress):
        if kind in SCALAR_INDICES:
            result = dataset.create_scalar_index(arguments.column, kind, **common, **options)
        elif kind in INDEX_TYPES:
            parameters = {"metric": arguments.metric, "num_partitions": arguments.partitions}
            settings = {key: value for key, value in parameters.items() if value is not None}
            result = dataset.create_index(arguments.column, kind, **common, **{**settings, **options})
        else:
            types = ", ".join([*SCALAR_INDICES, *INDEX_TYPES])
            similar = suggestion(arguments.type, [*SCALAR_INDICES, *INDEX_TYPES])
            raise OptionError(f"unknown index type {arguments.type!r}; use {types}{similar}")
    return _report_change(arguments, f"built {arguments.name or arguments.column + '_idx'}", result)


def optimize_indices(arguments: Arguments) -> int:
    """Extend indexes to rows that they do not cover yet."""
    dataset = open_table(arguments)
    names = [arguments.name] if arguments.name is not None else list_extendable_indexes(dataset.manifest)
    with Progress("indexing") as progress, reporting(progress):
        dataset.optimize.optimize_indices(index_names=names)
    return _report_change(
        arguments,
        f"covers every row: {', '.join(names) or 'the table has no index'}",
        dataset.checkout_latest(),
    )


def drop_index(arguments: Arguments) -> int:
    """Drop an index. Older versions keep it."""
    return _report_change(
        arguments, f"dropped {arguments.name}", open_table(arguments).drop_index(arguments.name)
    )


def _index_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return the index options of texts such as `num_bits=4`. Values are parsed as JSON if possible."""
    options: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise OptionError(f"--option takes NAME=VALUE, not {text!r}")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def _report_change(arguments: Arguments, what: str, dataset: LanceDataset) -> int:
    if arguments.json:
        say(as_json({"done": what, "version": dataset.version}))
    else:
        say(f"{what} (version {dataset.version})")
    return 0


_DAMAGED = 1


def compact(arguments: Arguments) -> int:
    """Merge small fragments and drop deleted rows; with `--dry-run`, only show the plan."""
    dataset = open_table(arguments)
    options = {
        "target_rows_per_fragment": arguments.target_rows,
        "max_source_bytes": arguments.max_bytes,
        "materialize_deletions_threshold": arguments.materialize_deletions_threshold,
        "data_storage_version": arguments.file_version,
        "defer_index_remap": arguments.defer_index_remap or None,
        "num_threads": arguments.threads,
    }
    if arguments.dry_run:
        return _show_plan(Compaction.plan(dataset, options), dataset.count_rows(), arguments)
    with Progress("rewriting") as progress, reporting(progress):
        metrics = dataset.compact_files(**options)
    if arguments.json:
        say(as_json(metrics))
    else:
        print_pairs((name.replace("_", " "), value) for name, value in vars(metrics).items())
    return 0


def _show_plan(plan: CompactionPlan, rows: int, arguments: Arguments) -> int:
    """Show the groups of fragments that would be rewritten, and the resulting fragments."""
    groups = [
        {
            "group": number,
            "fragments": len(task.fragments),
            "rows": task.rows,
            "deleted_rows": sum(f.deletion_file.num_deleted_rows for f in task.fragments),
            "bytes": task.stored_bytes,
            "fragments_after": -(-task.rows // task.rows_per_file),
            "rows_each": min(task.rows, task.rows_per_file),
        }
        for number, task in enumerate(plan.tasks, 1)
    ]
    if arguments.json:
        say(as_json(groups))
        return 0
    if not groups:
        say("nothing to do")
        return 0
    names = tuple(name.replace("_", " ") for name in groups[0])
    print_table(names, [tuple(group.values()) for group in groups], wide=arguments.wide)
    before, after = (sum(group[name] for group in groups) for name in ("fragments", "fragments_after"))
    row_count = sum(group["rows"] for group in groups)
    read = size_text(sum(group["bytes"] for group in groups))
    say()
    say(f"{before} fragments become {after}; {row_count} of {rows} rows are rewritten, {read} are read")
    return 0


def vacuum(arguments: Arguments) -> int:
    """Delete old versions and the files that only they need; with `--dry-run`, only list them."""
    dataset = open_table(arguments)
    if not arguments.dry_run:
        check_deletion(dataset.manifest)
    age: timedelta | None = None if arguments.older_than is None else parse_duration(arguments.older_than)
    age = guarded_age(
        dataset.manifest,
        age,
        arguments.retain_versions is not None,
        allow_short=arguments.allow_short_retention or (arguments.dry_run and age is not None),
        source=f"--older-than {arguments.older_than}",
        remedy="--allow-short-retention",
    )
    with Progress("scanning") as progress, reporting(progress):
        stats = dataset.cleanup_old_versions(
            older_than=age,
            retain_versions=arguments.retain_versions,
            delete_unverified=arguments.delete_unverified,
            error_if_tagged_old_versions=False,
            dry_run=arguments.dry_run,
        )
    if arguments.json:
        say(as_json(stats))
        return 0
    if arguments.dry_run:
        _show_deletions(dataset, stats.files, arguments)
    print_pairs(
        [
            ("would free" if arguments.dry_run else "freed", size_text(stats.bytes_removed)),
            ("old versions", stats.old_versions),
            ("data files", stats.data_files_removed),
            ("deletion files", stats.deletion_files_removed),
            ("index files", stats.index_files_removed),
            ("transaction files", stats.transaction_files_removed),
            ("failed to delete", stats.failed_deletes or None),
        ]
    )
    if arguments.retain_versions is not None and not arguments.allow_short_retention:
        left = len(list_versions(dataset.table)) - arguments.retain_versions
        left -= stats.old_versions if arguments.dry_run else 0
        if left > 0:
            stay = "stays" if left == 1 else "stay"
            say(f"{left} more {stay}: too new without --allow-short-retention, or used by tags and branches")
    return 0


def _show_deletions(dataset: LanceDataset, files: Sequence[CleanupFile], arguments: Arguments) -> None:
    """Show the versions that would be deleted, and the number and size of their files."""
    expired = {file.path: file for file in files if file.kind == "manifest"}
    versions = [
        (version.version, read_manifest(dataset.store, version.path, version.naming).timestamp)
        for version in list_versions(dataset.table)
        if version.path in expired
    ]
    if versions:
        print_table(("version", "committed at"), versions, wide=arguments.wide)
        say()
    kinds = sorted({(file.kind, file.unverified) for file in files})
    rows = []
    for kind, unverified in kinds:
        sizes = [f.size_bytes for f in files if (f.kind, f.unverified) == (kind, unverified)]
        rows.append(
            (kind, "no version" if unverified else "deleted versions", len(sizes), size_text(sum(sizes)))
        )
    if rows:
        print_table(("files", "needed by", "number", "size"), rows, wide=arguments.wide)
        say()
    if arguments.wide:
        print_table(("kind", "bytes", "file"), [(f.kind, f.size_bytes, f.path) for f in files], wide=True)
        say()


def _say_repair(result: Repair) -> None:
    if result.restored is not None:
        say(f"the newest manifest was torn: restored version {result.restored} as {result.manifest.version}")
    for path in result.moved_paths:
        say(f"moved a torn manifest to {path}")
    say("repaired" if result.moved_paths else "nothing to repair")
    say()


def check(arguments: Arguments) -> int:
    """Read a whole version and check everything; return 1 if something is damaged."""
    dataset = open_table(arguments)
    repaired = None
    if arguments.repair:
        if arguments.version is not None:
            raise OptionError("--repair works on the whole table: leave out --version")
        repaired = repair(dataset.table)
        dataset = dataset.checkout_latest()
    with Progress("reading") as progress:
        report = verify(dataset.snapshot, lambda amount, total: progress("reading", amount, total, "bytes"))
    if arguments.json:
        repairs = (
            {} if repaired is None else {"restored": repaired.restored, "moved": list(repaired.moved_paths)}
        )
        say(as_json({"damaged": report.damaged, **repairs, **vars(report)}))
        return _DAMAGED if report.damaged else 0
    if repaired is not None:
        _say_repair(repaired)
    print_pairs(
        [
            ("version", report.version),
            ("versions", report.versions),
            ("rows", report.rows),
            ("fragments", report.fragments),
            ("data files", f"{report.data_files} ({size_text(report.bytes)})"),
            ("indexes", report.indices),
        ]
    )
    say()
    if report.findings:
        findings = [(f.level, f.where, f.message) for f in report.findings]
        print_table(("level", "where", "what"), findings, wide=arguments.wide)
        say()
    say("damaged" if report.damaged else "no damage found")
    return _DAMAGED if report.damaged else 0
