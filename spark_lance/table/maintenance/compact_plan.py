"""Plan a compaction: bins of neighbouring fragments, split into groups, with one task for each group.

A fragment is rewritten if the share of deleted rows exceeds the threshold. A fragment with fewer rows than
the target is rewritten if it has a neighbour to merge with. Neighbours are next to each other in the table
and are covered by the same indexes, because indexed rows are never mixed with rows that are not indexed. A
bin is split when a group has the target number of rows, if the rest has at least as many rows.

In a partitioned table, the neighbours of a fragment are the fragments of the same partition. Rows of two
partitions are never merged into one file if each partition had its own file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pyroaring import BitMap

from spark_lance.errors import OptionError, suggestion
from spark_lance.file.base.version import FileVersion
from spark_lance.proto import table_pb2
from spark_lance.table.format.bitmaps import covered_fragments
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.partition_bounds import single_partition
from spark_lance.table.format.partitions import PartitionSpec
from spark_lance.table.format.reserved_names import FRAGMENT_REUSE, MEM_WAL
from spark_lance.table.indices.fragment_reuse import with_present_coverage
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.writing.targets import MAX_BYTES_PER_FILE, MAX_ROWS_PER_FILE

CONFIG_PREFIX = "lance.compaction."
_MODES = ("reencode", "try_binary_copy", "force_binary_copy")


@dataclass(frozen=True)
class CompactionOptions:
    """The options of a compaction; the names are the same as in `compact_files` and in the table's config.

    Attributes:
        target_rows_per_fragment: the number of rows of a new fragment; smaller fragments are rewritten.
        max_rows_per_group: ignored; it has no meaning for files of version 2.0 and later.
        max_bytes_per_file: the maximal size of a new file, estimated from the sizes of the old files.
        materialize_deletions: whether to rewrite fragments with many deleted rows.
        materialize_deletions_threshold: the share of deleted rows up to which a fragment is not rewritten.
        defer_index_remap: whether to record the moves of rows, so that indexes need not be rewritten.
        remap_indices: whether to rewrite indexes with the new row addresses, unless that is deferred. If
            false, indexes no longer cover the rewritten rows.
        num_threads: the number of groups that are rewritten at the same time; 1 by default.
        batch_size: the maximal number of rows to read at once; by default only bytes are limited.
        compaction_mode: "reencode", or "try_binary_copy", which has the same effect.
        binary_copy_read_batch_bytes, io_buffer_size: ignored.
        max_source_fragments, max_source_rows, max_source_bytes: the limits of what one run rewrites.
        excluded_fragment_ids: fragments that are not rewritten. Fragments before and after them are not
            merged.
        data_storage_version: the version of the new files; the table's version by default.
    """

    target_rows_per_fragment: int = MAX_ROWS_PER_FILE
    max_rows_per_group: int | None = None
    max_bytes_per_file: int = MAX_BYTES_PER_FILE
    materialize_deletions: bool = True
    materialize_deletions_threshold: float = 0.1
    defer_index_remap: bool = False
    remap_indices: bool = True
    num_threads: int | None = None
    batch_size: int | None = None
    compaction_mode: str = "reencode"
    binary_copy_read_batch_bytes: int | None = None
    io_buffer_size: int | None = None
    max_source_fragments: int | None = None
    max_source_rows: int | None = None
    max_source_bytes: int | None = None
    excluded_fragment_ids: tuple[int, ...] = ()
    data_storage_version: str | None = None


# Options that are not read from the table's config.
_PER_CALL = frozenset({"num_threads", "io_buffer_size", "excluded_fragment_ids"})
_BOOLEANS = {"true": True, "false": False}


def read_options(config: Mapping[str, str], overrides: Mapping[str, Any]) -> CompactionOptions:
    """Return the options of a compaction: overrides win over the table's config and the defaults.

    Raises:
        OptionError: an option does not exist, or a value is not valid.
    """
    kinds = {option.name: str(option.type) for option in fields(CompactionOptions)}
    if unknown := sorted(overrides.keys() - kinds.keys()):
        raise OptionError(
            f"compaction has no option {unknown[0]!r}; there are {', '.join(kinds)}"
            f"{suggestion(unknown[0], kinds)}"
        )
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        text = config.get(CONFIG_PREFIX + name)
        if overrides.get(name) is not None:
            values[name] = overrides[name]
        elif text is not None and name not in _PER_CALL:
            values[name] = _parse(name, kind, text)
    values["excluded_fragment_ids"] = tuple(values.get("excluded_fragment_ids", ()))
    options = CompactionOptions(**values)
    _check_options(options)
    return options


def _parse(name: str, kind: str, text: str) -> Any:
    try:
        if kind.startswith("bool"):
            return _BOOLEANS[text.lower()]
        return float(text) if kind.startswith("float") else int(text) if kind.startswith("int") else text
    except (ValueError, KeyError):
        raise OptionError(f"the table's config {CONFIG_PREFIX}{name} is {text!r}, no {kind}") from None


def _check_options(options: CompactionOptions) -> None:
    for option in fields(options):
        value = getattr(options, option.name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if str(option.type).startswith("int") and value is not None and not whole:
            raise OptionError(f"{option.name} must be a whole number, not {value!r}")
        if str(option.type).startswith("int") and value is not None and value < 1:
            raise OptionError(f"{option.name} must be at least 1, not {value}")
    share: Any = options.materialize_deletions_threshold
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise OptionError(f"materialize_deletions_threshold must be a share from 0 to 1, not {share!r}")
    if options.compaction_mode not in _MODES:
        raise OptionError(f"compaction_mode {options.compaction_mode!r}: use one of {', '.join(_MODES)}")
    if options.compaction_mode == "force_binary_copy":
        raise OptionError("binary copies of files are not supported: use compaction_mode 'reencode'")
    if options.data_storage_version is not None:
        FileVersion.parse(options.data_storage_version)


@dataclass(frozen=True)
class Group:
    """Fragments that are rewritten together.

    Attributes:
        fragments: the fragments, in the order of their rows.
        rows: the number of live rows.
        stored_bytes: the total size of the data files.
        indexed: whether an index covers the fragments.
    """

    fragments: tuple[table_pb2.DataFragment, ...]
    rows: int
    stored_bytes: int
    indexed: bool


@dataclass(frozen=True)
class _Candidate:
    """A fragment that may be rewritten.

    Attributes:
        fragment: the fragment.
        rows: the number of live rows.
        stored_bytes: the size of its data files.
        alone: whether it is rewritten even without a neighbour.
        indices: the UUIDs of the index segments that cover it.
    """

    fragment: table_pb2.DataFragment
    rows: int
    stored_bytes: int
    alone: bool
    indices: frozenset[bytes] = field(default_factory=frozenset)


def plan_groups(
    snapshot: Snapshot,
    options: CompactionOptions,
    only: Iterable[int] | None = None,
) -> list[Group]:
    """Return the groups of fragments to rewrite, in the order of their rows.

    Args:
        snapshot: the version.
        options: the options of the compaction.
        only: the ids of the fragments to consider; all by default.

    Raises:
        FormatError: index entries are damaged.
    """
    fragment_ids = None if only is None else frozenset(only)
    runs = _find_runs(snapshot, options, fragment_ids)
    parts = (part for run in runs for part in _split_run(run, options) if _is_worth_rewriting(part))
    return [
        Group(
            fragments=tuple(candidate.fragment for candidate in part),
            rows=sum(candidate.rows for candidate in part),
            stored_bytes=sum(candidate.stored_bytes for candidate in part),
            indexed=bool(part[0].indices),
        )
        for part in _limit_groups(parts, options)
    ]


def _is_worth_rewriting(part: Sequence[_Candidate]) -> bool:
    return len(part) > 1 or (len(part) == 1 and part[0].alone)


def _find_runs(
    snapshot: Snapshot, options: CompactionOptions, only: frozenset[int] | None
) -> Iterator[list[_Candidate]]:
    """Yield runs of candidates of the same partition that are covered by the same indexes."""
    coverage = _index_coverage(with_present_coverage(snapshot))
    excluded = frozenset(options.excluded_fragment_ids)
    run: list[_Candidate] = []
    partition: object = None
    for key, fragment in _by_partition(snapshot):
        eligible = fragment.id not in excluded and (only is None or fragment.id in only)
        candidate = _make_candidate(snapshot, fragment, options, coverage) if eligible else None
        if run and (candidate is None or key != partition or candidate.indices != run[-1].indices):
            yield run
            run = []
        partition = key
        if candidate is not None:
            run.append(candidate)
    if run:
        yield run


def _by_partition(snapshot: Snapshot) -> Iterator[tuple[object, table_pb2.DataFragment]]:
    """Yield (partition, fragment), clustered by partition; None for a fragment with several partitions."""
    spec = PartitionSpec.of_config(snapshot.manifest.config).present(snapshot.schema)
    groups: dict[object, list[table_pb2.DataFragment]] = {}
    for fragment in snapshot.fragments:
        bounds = single_partition(spec, fragment) if spec else None
        key = None if bounds is None else tuple(each.low for each in bounds)
        groups.setdefault(key, []).append(fragment)
    return ((key, fragment) for key, fragments in groups.items() for fragment in fragments)


def _make_candidate(
    snapshot: Snapshot,
    fragment: table_pb2.DataFragment,
    options: CompactionOptions,
    coverage: Mapping[bytes, BitMap],
) -> _Candidate | None:
    rows = snapshot.physical_rows(fragment)
    deleted = fragment.deletion_file.num_deleted_rows
    alone = options.materialize_deletions and deleted > options.materialize_deletions_threshold * rows
    if not alone and rows >= options.target_rows_per_fragment:
        return None
    indices = frozenset(name for name, covered in coverage.items() if fragment.id in covered)
    stored_bytes = sum(file.file_size_bytes for file in fragment.files)
    return _Candidate(fragment, rows - deleted, stored_bytes, alone, indices)


def _index_coverage(manifest: Manifest) -> dict[bytes, BitMap]:
    """Return the fragments that each index segment covers; a segment without a bitmap covers nothing."""
    coverage = {
        entry.uuid.uuid: covered_fragments(entry)
        for entry in manifest.indices
        if entry.name not in (FRAGMENT_REUSE, MEM_WAL)
    }
    return {uuid: covered for uuid, covered in coverage.items() if covered is not None}


def _split_run(run: Sequence[_Candidate], options: CompactionOptions) -> Iterator[list[_Candidate]]:
    """Split neighbours into groups of the target rows or one file's bytes; the last group may be larger."""
    left_rows = sum(candidate.rows for candidate in run)
    left_bytes = sum(candidate.stored_bytes for candidate in run)
    part: list[_Candidate] = []
    rows = stored_bytes = 0
    for candidate in run:
        part.append(candidate)
        rows += candidate.rows
        stored_bytes += candidate.stored_bytes
        left_rows -= candidate.rows
        left_bytes -= candidate.stored_bytes
        enough_rows = rows >= options.target_rows_per_fragment <= left_rows
        enough_bytes = stored_bytes >= options.max_bytes_per_file <= left_bytes
        if enough_rows or enough_bytes:
            yield part
            part, rows, stored_bytes = [], 0, 0
    if part:
        yield part


def _limit_groups(
    parts: Iterable[list[_Candidate]], options: CompactionOptions
) -> Iterator[list[_Candidate]]:
    """Yield the first groups that are within the limits of one run; the last group is shortened to fit.

    If no two neighbours fit within the limits, only fragments that need no neighbour are rewritten.
    """
    limits = (options.max_source_fragments, options.max_source_rows, options.max_source_bytes)
    totals = (0, 0, 0)
    for part in parts:
        fitting: list[_Candidate] = []
        for candidate in part:
            new_totals = (totals[0] + 1, totals[1] + candidate.rows, totals[2] + candidate.stored_bytes)
            if any(
                limit is not None and size > limit for size, limit in zip(new_totals, limits, strict=True)
            ):
                break
            totals = new_totals
            fitting.append(candidate)
        if _is_worth_rewriting(fitting):
            yield fitting
        if len(fitting) < len(part):
            return
