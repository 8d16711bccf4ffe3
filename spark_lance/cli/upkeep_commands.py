"""The commands that change or check files: compact, vacuum, verify."""

from __future__ import annotations

import argparse
from datetime import timedelta

from spark_lance.cli.opening import open_table
from spark_lance.cli.output import Progress, as_json, print_pairs, print_table, say, size_text
from spark_lance.datasets.compaction import Compaction
from spark_lance.table.maintenance.retention import guarded_age
from spark_lance.table.maintenance.verify import verify
from spark_lance.table.versions.auto_cleanup import parse_duration

__all__ = ["check", "compact", "vacuum"]

_DAMAGED = 1


def compact(arguments: argparse.Namespace) -> int:
    """Merge small fragments and drop deleted rows, or show what there is to do."""
    dataset = open_table(arguments)
    options = {
        "target_rows_per_fragment": arguments.target_rows,
        "max_source_bytes": arguments.max_bytes,
        "data_storage_version": arguments.file_version,
        "defer_index_remap": arguments.defer_index_remap or None,
        "num_threads": arguments.threads,
    }
    if arguments.dry_run:
        plan = Compaction.plan(dataset, options)
        groups = [
            {
                "group": number,
                "fragments": len(task.fragments),
                "rows": sum(f.physical_rows - f.deletion_file.num_deleted_rows for f in task.fragments),
                "deleted_rows": sum(f.deletion_file.num_deleted_rows for f in task.fragments),
                "bytes": sum(file.file_size_bytes for f in task.fragments for file in f.files),
            }
            for number, task in enumerate(plan.tasks, 1)
        ]
        if arguments.json:
            say(as_json(groups))
        elif groups:
            print_table(tuple(groups[0]), [tuple(group.values()) for group in groups])
        else:
            say("nothing to do")
        return 0
    metrics = dataset.compact_files(**options)
    if arguments.json:
        say(as_json(metrics))
    else:
        print_pairs((name.replace("_", " "), value) for name, value in vars(metrics).items())
    return 0


def vacuum(arguments: argparse.Namespace) -> int:
    """Delete old versions and the files that only they need; or show which."""
    dataset = open_table(arguments)
    age: timedelta | None = None if arguments.older_than is None else parse_duration(arguments.older_than)
    age = guarded_age(
        dataset.manifest,
        age,
        arguments.retain_versions is not None,
        allow_short=arguments.allow_short_retention or (arguments.dry_run and age is not None),
        given=f"--older-than {arguments.older_than}",
        remedy="--allow-short-retention",
    )
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
    if arguments.dry_run and stats.files:
        rows = [(file.kind, file.size_bytes, file.unverified, file.path) for file in stats.files]
        print_table(("kind", "bytes", "no version names it", "file"), rows)
        say()
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
    return 0


def check(arguments: argparse.Namespace) -> int:
    """Read a version as a whole and check everything; 1 if something is damaged."""
    dataset = open_table(arguments)
    progress = Progress("reading")
    try:
        found = verify(dataset.snapshot, progress)
    finally:
        progress.finish()
    if arguments.json:
        say(as_json({"damaged": found.damaged, **vars(found)}))
        return _DAMAGED if found.damaged else 0
    print_pairs(
        [
            ("version", found.version),
            ("versions", found.versions),
            ("rows", found.rows),
            ("fragments", found.fragments),
            ("data files", f"{found.data_files} ({size_text(found.bytes)})"),
            ("indices", found.indices),
        ]
    )
    say()
    if found.findings:
        print_table(("level", "where", "what"), [(f.level, f.where, f.message) for f in found.findings])
        say()
    say("damaged" if found.damaged else "no damage found")
    return _DAMAGED if found.damaged else 0
