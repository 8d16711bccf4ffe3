"""The commands that inspect a table: inspect, schema, stats, history, doctor.

`doctor` shows which engines can read and write a table. A program must not use a table with a feature flag
that it does not know (table format, feature flags). It must also support the versions of the data files.
`ENGINES` has the results of experiments, or of reading an engine's source code. Other engines were not
examined.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spark_lance.cli.commands import PROGRAM, Arguments
from spark_lance.cli.opening import open_table
from spark_lance.cli.output import Progress, as_json, print_pairs, print_table, say
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.maintain import Compaction
from spark_lance.expressions.geo_functions import extension_name
from spark_lance.file.base.extensions import GEOMETRY_TYPES
from spark_lance.file.base.version import FileVersion
from spark_lance.index.vector.kinds import is_multi
from spark_lance.io.display import count_text, size_text
from spark_lance.io.progress import reporting
from spark_lance.redaction import redacted
from spark_lance.table.format.features import FEATURES, feature_names
from spark_lance.table.format.paths import ManifestNaming
from spark_lance.table.metadata import metadata_table
from spark_lance.table.metadata.column_sizes import column_sizes
from spark_lance.table.metadata.detail import table_detail
from spark_lance.table.versions.branches import Branches
from spark_lance.table.versions.ref_files import list_tags

_FLAGS_OF_30 = 1 | 2 | 4 | 8
_FLAGS_OF_38 = _FLAGS_OF_30 | 16
_FLAGS_OF_2025 = _FLAGS_OF_38 | 32
_FLAGS_OF_14 = _FLAGS_OF_2025 | 128 | 256 | 1024 | 2048 | 16384 | 32768


@dataclass(frozen=True)
class Engine:
    """The features that one engine supports.

    Attributes:
        name: the engine.
        reads, writes: the feature flags of tables that it can read and write.
        read_versions, written_versions: the versions of data files that it can read and write.
        flags_known, versions_known: whether the engine refuses other flags and versions; otherwise newer
            releases may support them.
        note: explanation to show with the result.
    """

    name: str
    reads: int
    writes: int
    read_versions: frozenset[str]
    written_versions: frozenset[str]
    flags_known: bool = True
    versions_known: bool = True
    note: str = ""


@dataclass(frozen=True)
class EngineSupport:
    """Whether an engine can read or write a table: "yes", "no" or "unknown", and why."""

    engine: str
    read: str
    write: str
    reason: str


ENGINES = (
    Engine(
        "spark_lance (this package)",
        sum(feature.bit for feature in FEATURES if feature.reads),
        sum(feature.bit for feature in FEATURES if feature.writes),
        frozenset(version.text for version in FileVersion),
        frozenset(version.text for version in FileVersion if version.writable),
    ),
    Engine(
        "pylance 14",
        _FLAGS_OF_14,
        _FLAGS_OF_14,
        frozenset({"0.1", "2.0", "2.1", "2.2", "2.3"}),
        frozenset({"0.1", "2.0", "2.1", "2.2", "2.3"}),
    ),
    Engine(
        "pylance 4 to 8",
        _FLAGS_OF_2025,
        _FLAGS_OF_2025,
        frozenset({"0.1", "2.0", "2.1", "2.2"}),
        frozenset({"0.1", "2.0", "2.1", "2.2"}),
    ),
    Engine(
        "pylance 1 to 2",
        _FLAGS_OF_2025,
        _FLAGS_OF_2025,
        frozenset({"0.1", "2.0", "2.1"}),
        frozenset({"0.1", "2.0", "2.1"}),
    ),
    Engine(
        "pylance 0.38 to 0.39",
        _FLAGS_OF_38,
        _FLAGS_OF_38,
        frozenset({"0.1", "2.0", "2.1"}),
        frozenset({"0.1", "2.0", "2.1"}),
    ),
    Engine(
        "pylance 0.30",
        _FLAGS_OF_30,
        _FLAGS_OF_30,
        frozenset({"0.1", "2.0"}),
        frozenset({"0.1", "2.0"}),
    ),
    Engine(
        "lance-spark",
        _FLAGS_OF_2025,
        _FLAGS_OF_2025,
        frozenset({"2.0", "2.1"}),
        frozenset({"2.0", "2.1"}),
        flags_known=False,
        versions_known=False,
        note="depends on the Lance library in the release",
    ),
)


def check_engine(
    engine: Engine, reader_flags: int, writer_flags: int, versions: frozenset[str]
) -> EngineSupport:
    """Return whether an engine can read and write a table, and why not.

    Args:
        engine: a row of `ENGINES`.
        reader_flags, writer_flags: the feature flags of the table.
        versions: the versions of the table's data files.
    """
    unread = reader_flags & ~engine.reads
    unwritten = (reader_flags | writer_flags) & ~engine.writes
    old = versions - engine.read_versions
    fixed = versions - engine.written_versions
    reasons = [f"{name}: cannot read" for name in feature_names(unread)]
    reasons += [f"{name}: cannot write" for name in feature_names(unwritten & ~unread)]
    reasons += [f"files of version {version}: cannot read{_remedy(engine)}" for version in sorted(old)]
    reasons += [f"files of version {version}: cannot write" for version in sorted(fixed - old)]
    if reasons and engine.note:
        reasons.append(engine.note)
    return EngineSupport(
        engine.name,
        _answer(engine, bool(unread), bool(old)),
        _answer(engine, bool(unread or unwritten), bool(old or fixed)),
        "; ".join(reasons),
    )


def _remedy(engine: Engine) -> str:
    """Return advice on the file version to choose for a table that an engine must read."""
    newest = max(engine.read_versions & engine.written_versions)
    return f" (create the table with data_storage_version={newest} instead)"


def _answer(engine: Engine, new_flags: bool, new_versions: bool) -> str:
    """Return "yes", "no" or "unknown" for a table that may have flags or versions unknown to the engine."""
    if (new_flags and engine.flags_known) or (new_versions and engine.versions_known):
        return "no"
    return "unknown" if new_flags or new_versions else "yes"


_HISTORY = ("version", "timestamp", "operation", "operationParameters", "operationMetrics", "userMetadata")
_MANY_VERSIONS = 1000
_FEW_BYTES = 1 << 20


def inspect(arguments: Arguments) -> int:
    """Show a table's columns, rows, files, indexes, tags and branches."""
    dataset = open_table(arguments)
    snapshot = dataset.snapshot
    detail = table_detail(snapshot)
    columns = [
        {
            "name": field.name,
            "type": str(field.type),
            "nullable": field.nullable,
            **_metadata_entry(field.metadata),
        }
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
    tags = list_tags(snapshot.main_line)
    branches = Branches(snapshot.main_line).list()
    if arguments.json:
        details = {"columns": columns, "indices": indices, "tags": tags, "branches": branches}
        say(as_json({"table": detail, **details}))
        return 0
    print_pairs(
        [
            ("location", detail.location),
            ("description", detail.description),
            ("branch", detail.branch),
            ("version", f"{detail.version}, committed at {detail.last_modified:%F %T} UTC"),
            ("versions", detail.num_versions),
            ("rows", f"{detail.num_rows:,}, {detail.num_deleted_rows:,} deleted"),
            ("data files", f"{detail.num_files:,} in {count_text(detail.num_fragments, 'fragment')}"),
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
    print_table(("column", "type", "nullable", "metadata"), rows, wide=arguments.wide)
    if indices:
        say()
        print_table(tuple(indices[0]), [tuple(index.values()) for index in indices], wide=arguments.wide)
    return 0


def schema(arguments: Arguments) -> int:
    """Show the columns of a table and their nested fields, with field ids."""
    fields = metadata_table("schema").to_arrow(open_table(arguments).snapshot).to_pylist()
    rows = [{**row, "metadata": dict(row["metadata"] or ())} for row in fields]
    if arguments.json:
        say(as_json(rows))
        return 0
    names = ("id", "path", "arrow_type", "nullable", "key_position", "metadata")
    print_table(
        ("id", "column", "type", "nullable", "key", "metadata"),
        [tuple(row[name] for name in names) for row in rows],
        wide=arguments.wide,
    )
    return 0


def stats(arguments: Arguments) -> int:
    """Show the size and encoding of each column."""
    dataset = open_table(arguments)
    with Progress("reading files") as progress, reporting(progress):
        columns = column_sizes(dataset.snapshot)
    if arguments.json:
        say(as_json(columns))
        return 0
    total, rows = sum(column.bytes for column in columns), max(dataset.count_rows(), 1)
    print_table(
        ("column", "type", "bytes", "share", "bytes per row", "pages", "encodings"),
        [
            (
                column.name,
                column.type,
                size_text(column.bytes),
                f"{column.bytes / total:.1%}" if total else "-",
                f"{column.bytes / rows:,.1f}",
                column.pages,
                "; ".join(f"{count} of {names}" for names, count in column.encodings.items()),
            )
            for column in columns
        ],
        wide=arguments.wide,
    )
    return 0


def history(arguments: Arguments) -> int:
    """Show the operation of each version, newest first."""
    dataset = open_table(arguments)
    table = metadata_table("history")
    versions = table.to_arrow(dataset.snapshot, limit=arguments.limit)
    rows = [{**row, **_maps(row)} for row in versions.to_pylist()]
    if arguments.json:
        say(as_json(rows))
    else:
        print_table(
            _HISTORY, [[_without_zeros(row[name]) for name in _HISTORY] for row in rows], wide=arguments.wide
        )
    return 0


@dataclass(frozen=True)
class Advice:
    """A command or Python call that would improve a table, and the reason."""

    command: str
    reason: str

    @property
    def typed(self) -> str:
        """The text to type: a Python call, or a command with the program's name."""
        return self.command if self.command.startswith("spark_lance.") else f"{PROGRAM} {self.command}"


def doctor(arguments: Arguments) -> int:
    """Show the feature flags of a table, which engines can use it, and advice."""
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
    verdicts = [check_engine(engine, *flags, versions) for engine in ENGINES]
    advice = list(advice_for(dataset))
    columns = dict(_special_columns(dataset))
    if arguments.json:
        details = {"features": features, "file_versions": sorted(versions), "columns": columns}
        say(as_json({**details, "engines": verdicts, "advice": advice}))
        return 0
    print_pairs([("file versions", sorted(versions)), ("manifest names", dataset.manifest.naming.name)])
    if columns:
        print_pairs(list(columns.items()))
    say()
    if features:
        print_table(
            ("feature", "readers need it", "writers need it"), [tuple(row.values()) for row in features]
        )
    else:
        say("no feature flags")
    say()
    print_table(("engine", "reads", "writes"), [(v.engine, v.read, v.write) for v in verdicts])
    for verdict in verdicts:
        if verdict.reason:
            say(f"  {verdict.engine}: {verdict.reason}")
    say()
    for each in advice:
        say(f"{each.typed}: {each.reason}")
    if not advice:
        say("nothing to do")
    return 0


def advice_for(dataset: LanceDataset) -> Iterator[Advice]:
    """Yield advice for a table: commands, or Python calls if there is no command."""
    detail = table_detail(dataset.snapshot)
    dataset_call, place = f"spark_lance.dataset({redacted(dataset.uri)!r})", _word(redacted(dataset.uri))
    tasks = Compaction.plan(dataset).tasks if dataset.manifest.file_version.writable else []
    if tasks:
        fragments = sum(len(task.old) for task in tasks)
        yield Advice(
            f"compact {place}",
            f"{fragments} of {detail.num_fragments} fragments are small or have many deleted rows",
        )
    if detail.num_versions > _MANY_VERSIONS:
        yield Advice(f"vacuum {place}", f"the table has {detail.num_versions} versions")
    for index in dataset.describe_indices():
        if index.fields and index.num_rows_indexed is not None:
            missing = detail.num_rows - index.num_rows_indexed
            if missing > 0:
                yield Advice(
                    f"index optimize {place} {_word(index.name)}",
                    f"index {index.name} does not cover {missing} of {detail.num_rows} rows",
                )
    if dataset.manifest.naming is ManifestNaming.V1:
        yield Advice(
            f"{dataset_call}.migrate_manifest_paths_v2()",
            "with this naming, finding the newest version needs a listing of all versions",
        )
    if not dataset.manifest.file_version.writable:
        yield Advice(
            f'spark_lance.write_dataset({dataset_call}.to_table(), "NEW_PATH")',
            "legacy files are read-only: write the rows to a new table",
        )


def _word(text: str) -> str:
    """Quote a text for a shell, so that it is not parsed as an option."""
    return f"{'-- ' if text.startswith('-') else ''}{shlex.quote(text)}"


def _special_columns(dataset: LanceDataset) -> Iterator[tuple[str, str]]:
    """Yield (column, description) for JSON, blob, geometry and multi-vector columns."""
    schema = dataset.lance_schema
    for field in schema.walk():
        if field.is_json:
            yield schema.field_path(field.id), "JSON documents (lance.json)"
        elif field.is_blob:
            yield schema.field_path(field.id), "blobs"
        elif (extension := extension_name(field.arrow_field())) in GEOMETRY_TYPES:
            yield schema.field_path(field.id), f"geometries ({extension})"
        elif is_multi(field.arrow_type()):
            yield schema.field_path(field.id), "several vectors per row (list of fixed-size lists)"


def _file_versions(dataset: LanceDataset) -> Iterator[str]:
    yield dataset.manifest.file_version.text
    for fragment in dataset.manifest.fragments:
        for file in fragment.files:
            major, minor = file.file_major_version, file.file_minor_version
            yield "0.1" if (major, minor) <= (0, 2) else f"{major}.{minor}"


def _metadata_entry(metadata: dict[bytes, bytes] | None) -> dict[str, Any]:
    details = {
        key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for key, value in (metadata or {}).items()
    }
    return {"metadata": details}


def _notes(column: dict[str, Any]) -> Any:
    return column["metadata"] or None


def _without_zeros(value: Any) -> Any:
    """Return a map without its zero counts, so that it fits in one line."""
    return {key: item for key, item in value.items() if item != "0"} if isinstance(value, dict) else value


def _maps(row: dict[str, Any]) -> dict[str, Any]:
    """Return the maps of a row as dicts. Arrow returns maps as lists of pairs."""
    return {
        name: dict(row[name]) if row[name] is not None else None
        for name in ("operationParameters", "operationMetrics")
    }
