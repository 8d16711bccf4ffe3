"""The commands of `wal`, for logged rows that are not in the table yet (MemWAL)."""

from __future__ import annotations

from spark_lance.cli.commands import Arguments
from spark_lance.cli.opening import open_table
from spark_lance.cli.output import Progress, as_json, print_pairs, print_table, say
from spark_lance.io.display import size_text
from spark_lance.io.progress import reporting
from spark_lance.memwal.names import GRACE
from spark_lance.table.versions.ages import parse_duration


def shards(arguments: Arguments) -> int:
    """Show the shards of a table."""
    shards_of_table = open_table(arguments).wal.shards()
    rows = [
        {
            "shard": shard.shard_id,
            "status": shard.status,
            "claims": shard.writer_epoch,
            "sstables": len(shard.sstables),
            "compacted": shard.compacted_generation,
            "logged_rows": shard.logged_rows,
        }
        for shard in shards_of_table
    ]
    if arguments.json:
        say(as_json(rows))
    elif not rows:
        say("no shards")
    else:
        names = tuple(name.replace("_", " ") for name in rows[0])
        print_table(names, [tuple(row.values()) for row in rows], wide=arguments.wide)
    return 0


def compact(arguments: Arguments) -> int:
    """Merge logged rows into the table and delete obsolete files; with `--dry-run`, only show the work."""
    dataset = open_table(arguments)
    age = GRACE if arguments.older_than is None else parse_duration(arguments.older_than)
    if arguments.dry_run:
        pending_shards = dataset.wal.shards()
        pending_sstables = sum(
            generation > shard.compacted_generation
            for shard in pending_shards
            for generation in shard.sstables
        )
        removed = dataset.wal.collect(older_than=age, dry_run=True)
        figures = {
            "sstables": pending_sstables,
            "logged_rows": sum(shard.logged_rows for shard in pending_shards),
        }
        figures["bytes_to_delete"] = removed.bytes_removed
        if arguments.json:
            say(as_json(figures))
        else:
            print_pairs((name.replace("_", " "), value) for name, value in figures.items())
        return 0
    with Progress("compacting") as progress, reporting(progress):
        result = dataset.wal.compact(flush=arguments.flush)
        removed = dataset.wal.collect(older_than=age)
    if arguments.json:
        say(as_json({**vars(result), "bytes_removed": removed.bytes_removed}))
        return 0
    print_pairs(
        [
            ("version", result.version),
            ("shards", result.shards),
            ("SSTables", result.sstables),
            ("rows upserted", result.rows_upserted),
            ("rows deleted", result.rows_deleted),
            ("freed", size_text(removed.bytes_removed)),
        ]
    )
    return 0
