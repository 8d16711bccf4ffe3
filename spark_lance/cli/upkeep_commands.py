"""The commands that change or check files: compact, vacuum, verify."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from spark_lance.cli.names import Arguments
from spark_lance.cli.opening import open_table
from spark_lance.cli.output import Progress, as_json, print_pairs, print_table, say, size_text
from spark_lance.datasets.compaction import Compaction
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import OptionError
from spark_lance.io.progress import reporting
from spark_lance.table.format.manifest import read_manifest
from spark_lance.table.maintenance.compact import CompactionPlan
from spark_lance.table.maintenance.repair import Repair, repair
from spark_lance.table.maintenance.retention import guarded_age
from spark_lance.table.maintenance.verify import verify
from spark_lance.table.versions.ages import parse_duration
from spark_lance.table.versions.cleanup import CleanupFile
from spark_lance.table.versions.versions import list_versions

_DAMAGED = 1


def compact(arguments: Arguments) -> int:
    """Merge small fragments and drop deleted rows, or show what there is to do."""
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
    """Show the groups of fragments that would be rewritten, and what would come out."""
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
    moved = sum(group["rows"] for group in groups)
    read = size_text(sum(group["bytes"] for group in groups))
    say()
    say(f"{before} fragments become {after}; {moved} of {rows} rows are rewritten, {read} are read")
    return 0


def vacuum(arguments: Arguments) -> int:
    """Delete old versions and the files that only they need; or show which."""
    dataset = open_table(arguments)
    age: timedelta | None = None if arguments.older_than is None else parse_duration(arguments.older_than)
    age = guarded_age(
        dataset.manifest,
        age,
        arguments.retain_versions is not None,
        allow_short=arguments.allow_short_retention or (arguments.dry_run and age is not None),
        source=f"--older-than {arguments.older_than}",
        remedy="--allow-short-retention",
    )
    with Progress("looking") as progress, reporting(progress):
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
        _show_what_goes(dataset, stats.files, arguments)
    print_pairs(
        [
            ("would go" if arguments.dry_run else "gone", size_text(stats.bytes_removed)),
            ("old versions", stats.old_versions),
            ("data files", stats.data_files_removed),
            ("deletion files", stats.deletion_files_removed),
            ("index files", stats.index_files_removed),
            ("transaction files", stats.transaction_files_removed),
            ("could not be deleted", stats.failed_deletes or None),
        ]
    )
    if arguments.retain_versions is not None and not arguments.allow_short_retention:
        left = len(list_versions(dataset.table)) - arguments.retain_versions
        left -= stats.old_versions if arguments.dry_run else 0
        if left > 0:
            stay = "stays" if left == 1 else "stay"
            say(
                f"{left} more {stay}: too young without --allow-short-retention, or kept by tags and branches"
            )
    return 0


def _show_what_goes(dataset: LanceDataset, files: Sequence[CleanupFile], arguments: Arguments) -> None:
    """Show the versions that would go, and how much of what."""
    gone = {file.path: file for file in files if file.kind == "manifest"}
    versions = [
        (version.version, read_manifest(dataset.store, version.path, version.naming).timestamp)
        for version in list_versions(dataset.table)
        if version.path in gone
    ]
    if versions:
        print_table(("version", "made at"), versions, wide=arguments.wide)
        say()
    kinds = sorted({(file.kind, file.unverified) for file in files})
    rows = []
    for kind, unverified in kinds:
        sizes = [f.size_bytes for f in files if (f.kind, f.unverified) == (kind, unverified)]
        rows.append(
            (kind, "no version" if unverified else "versions that go", len(sizes), size_text(sum(sizes)))
        )
    if rows:
        print_table(("files", "needed by", "number", "size"), rows, wide=arguments.wide)
        say()
    if arguments.wide:
        print_table(("kind", "bytes", "file"), [(f.kind, f.size_bytes, f.path) for f in files], wide=True)
        say()


def _say_repair(done: Repair) -> None:
    if done.restored is not None:
        say(f"the newest manifest was torn: restored version {done.restored} as {done.manifest.version}")
    for path in done.moved:
        say(f"moved a torn manifest to {path}")
    say("repaired" if done.moved else "nothing to repair")
    say()


def check(arguments: Arguments) -> int:
    """Read a version as a whole and check everything; 1 if something is damaged."""
    dataset = open_table(arguments)
    done = None
    if arguments.repair:
        if arguments.version is not None:
            raise OptionError("--repair is about the whole table: leave out --version")
        done = repair(dataset.table)
        dataset = dataset.checkout_latest()
    with Progress("reading") as progress:
        report = verify(dataset.snapshot, lambda done, total: progress("reading", done, total, "bytes"))
    if arguments.json:
        moved = {} if done is None else {"restored": done.restored, "moved": list(done.moved)}
        say(as_json({"damaged": report.damaged, **moved, **vars(report)}))
        return _DAMAGED if report.damaged else 0
    if done is not None:
        _say_repair(done)
    print_pairs(
        [
            ("version", report.version),
            ("versions", report.versions),
            ("rows", report.rows),
            ("fragments", report.fragments),
            ("data files", f"{report.data_files} ({size_text(report.bytes)})"),
            ("indices", report.indices),
        ]
    )
    say()
    if report.findings:
        findings = [(f.level, f.where, f.message) for f in report.findings]
        print_table(("level", "where", "what"), findings, wide=arguments.wide)
        say()
    say("damaged" if report.damaged else "no damage found")
    return _DAMAGED if report.damaged else 0
