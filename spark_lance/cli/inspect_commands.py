"""The commands that look at a table: inspect, history, doctor."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spark_lance.cli.engines import ENGINES, judge
from spark_lance.cli.opening import open_table
from spark_lance.cli.output import as_json, print_pairs, print_table, say, size_text
from spark_lance.datasets.compaction import Compaction
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.table.features import feature_names
from spark_lance.table.metadata import metadata_table
from spark_lance.table.metadata.detail import table_detail
from spark_lance.table.paths import Naming
from spark_lance.table.versions.branches import Branches
from spark_lance.table.versions.tag_files import list_tags

__all__ = ["doctor", "history", "inspect"]

_HISTORY = ("version", "timestamp", "operation", "operationParameters", "operationMetrics", "userMetadata")
_MANY_VERSIONS = 1000
_FEW_BYTES = 1 << 20


def inspect(arguments: argparse.Namespace) -> int:
    """Show a table's columns, rows, files, indices, tags and branches."""
    dataset = open_table(arguments)
    snapshot = dataset.snapshot
    detail = table_detail(snapshot)
    columns = [
        {"name": field.name, "type": str(field.type), "nullable": field.nullable, **_said(field.metadata)}
        for field in dataset.schema
    ]
    indices = [
        {
            "name": index.name,
            "type": index.index_type,
            "columns": list(index.field_names),
            "segments": len(index.segments),
            "rows": index.num_rows_indexed,
            "bytes": index.total_size_bytes,
        }
        for index in dataset.describe_indices()
        if index.fields
    ]
    tags = list_tags(dataset.store, snapshot.main_root)
    branches = Branches(dataset.store, snapshot.main_root).list()
    if arguments.json:
        shown = {"columns": columns, "indices": indices, "tags": tags, "branches": branches}
        say(as_json({"table": detail, **shown}))
        return 0
    print_pairs(
        [
            ("location", detail.location),
            ("description", detail.description),
            ("branch", detail.branch),
            ("version", f"{detail.version}, of {detail.last_modified:%F %T} UTC"),
            ("versions kept", detail.num_versions),
            ("rows", f"{detail.num_rows} ({detail.num_deleted_rows} more are marked as deleted)"),
            ("data files", f"{detail.num_files} in {detail.num_fragments} fragments"),
            ("bytes", f"{size_text(detail.size_bytes)}"),
            ("file version", detail.data_storage_version),
            ("row ids", "stable" if detail.stable_row_ids else "addresses"),
            ("primary key", detail.primary_key),
            ("config", detail.properties),
            ("features", detail.writer_features),
            ("tags", [f"{name} -> {tag['version']}" for name, tag in tags.items()]),
            ("branches", list(branches)),
        ]
    )
    say()
    rows = [(c["name"], c["type"], c["nullable"], _notes(c)) for c in columns]
    print_table(("column", "type", "nullable", "metadata"), rows)
    if indices:
        say()
        print_table(tuple(indices[0]), [tuple(index.values()) for index in indices])
    return 0


def history(arguments: argparse.Namespace) -> int:
    """Show the operation behind each version, newest first."""
    dataset = open_table(arguments)
    table = metadata_table("history")
    found = table.to_arrow(dataset.snapshot, limit=arguments.limit)
    rows = [{**row, **_maps(row)} for row in found.to_pylist()]
    if arguments.json:
        say(as_json(rows))
    else:
        print_table(_HISTORY, [[row[name] for name in _HISTORY] for row in rows])
    return 0


@dataclass(frozen=True)
class _Advice:
    """A command or Python call that would improve a table, and the reason."""

    command: str
    reason: str


def doctor(arguments: argparse.Namespace) -> int:
    """Show the features of a table, which engines can use it, and advice."""
    dataset = open_table(arguments)
    message = dataset.manifest.message
    versions = frozenset(_file_versions(dataset))
    flags = message.reader_feature_flags, message.writer_feature_flags
    features = [
        {
            "feature": name,
            "reading": name in feature_names(flags[0]),
            "writing": name in feature_names(flags[1]),
        }
        for name in dict.fromkeys([*feature_names(flags[0]), *feature_names(flags[1])])
    ]
    verdicts = [judge(engine, *flags, versions) for engine in ENGINES]
    advice = list(_advice(dataset))
    if arguments.json:
        shown = {"features": features, "file_versions": sorted(versions)}
        say(as_json({**shown, "engines": verdicts, "advice": advice}))
        return 0
    print_pairs([("file versions", sorted(versions)), ("manifest names", dataset.manifest.naming.name)])
    say()
    if features:
        print_table(("feature", "for reading", "for writing"), [tuple(row.values()) for row in features])
    else:
        say("no features that readers or writers must know")
    say()
    print_table(("engine", "reads", "writes"), [(v.engine, v.read, v.write) for v in verdicts])
    for verdict in verdicts:
        if verdict.reason:
            say(f"  {verdict.engine}: {verdict.reason}")
    say()
    for each in advice:
        say(f"{each.command}: {each.reason}")
    if not advice:
        say("nothing to do")
    return 0


def _advice(dataset: LanceDataset) -> Iterator[_Advice]:
    """Yield what would improve a table. What the command line lacks is advised as a call in Python."""
    detail = table_detail(dataset.snapshot)
    opened = f"spark_lance.dataset({dataset.uri!r})"
    tasks = Compaction.plan(dataset).tasks if dataset.manifest.file_version.writable else []
    if tasks:
        fragments = sum(len(task.old) for task in tasks)
        yield _Advice(
            "compact", f"{fragments} of {detail.num_fragments} fragments are small or have many deleted rows"
        )
    if detail.num_versions > _MANY_VERSIONS:
        yield _Advice("vacuum", f"{detail.num_versions} versions are kept")
    for index in dataset.describe_indices():
        if index.fields and index.num_rows_indexed is not None:
            missing = detail.num_rows - index.num_rows_indexed
            if missing > 0:
                yield _Advice(
                    f"{opened}.optimize.optimize_indices(index_names=[{index.name!r}])",
                    f"index {index.name} lacks {missing} of {detail.num_rows} rows",
                )
    if dataset.manifest.naming is Naming.V1:
        yield _Advice(
            f"{opened}.migrate_manifest_paths_v2()", "the newest version is not the first that a store lists"
        )
    if not dataset.manifest.file_version.writable:
        yield _Advice(
            f'spark_lance.write_dataset({opened}.to_table(), "NEW_PATH")',
            "legacy files can only be read: write the rows to a new table",
        )


def _file_versions(dataset: LanceDataset) -> Iterator[str]:
    yield dataset.manifest.file_version.text
    for fragment in dataset.manifest.fragments:
        for file in fragment.files:
            major, minor = file.file_major_version, file.file_minor_version
            yield "0.1" if (major, minor) <= (0, 2) else f"{major}.{minor}"


def _said(metadata: dict[bytes, bytes] | None) -> dict[str, Any]:
    known = {
        key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for key, value in (metadata or {}).items()
    }
    return {"metadata": known}


def _notes(column: dict[str, Any]) -> Any:
    return column["metadata"] or None


def _maps(row: dict[str, Any]) -> dict[str, Any]:
    """Return the maps of a row as dicts; Arrow gives lists of pairs."""
    return {
        name: dict(row[name]) if row[name] is not None else None
        for name in ("operationParameters", "operationMetrics")
    }
