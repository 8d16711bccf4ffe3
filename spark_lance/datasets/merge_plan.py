"""How a merge is run, as text: a tree of steps, the last on top."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa

from spark_lance.expressions.texts import condition_text
from spark_lance.io.counters import ReadCounts, read_counts
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.rows.key_lookup import key_indices
from spark_lance.table.rows.merge_insert import Merge, MergeRules, Written
from spark_lance.table.rows.merge_source import SourceRows
from spark_lance.table.writing.write import delete_fragment_files

__all__ = ["analyzed_merge", "explained_merge"]

_MATCHED = {"keep": "DoNothing", "update": "UpdateAll", "delete": "Delete", "fail": "Fail"}
# Which side's rows a join keeps without a partner: the table is on the left, the source on the right.
_JOINS = {(False, False): "Inner", (False, True): "Right", (True, False): "Left", (True, True): "Full"}


def explained_merge(snapshot: Snapshot, schema: pa.Schema, rules: MergeRules) -> str:
    """Return the plan of a merge. Nothing is read but manifests and what is known of indices.

    Args:
        snapshot: the version that the source is compared with.
        schema: of the source.
        rules: what is done.

    Raises:
        SchemaError, ExpressionError, UnsupportedFormatError: see `merge_rows`.
    """
    merge = Merge.plan(snapshot, SourceRows.of(schema.empty_table()), rules)
    return _tree(_steps(merge, [""] * 5))


def analyzed_merge(snapshot: Snapshot, source: SourceRows, rules: MergeRules) -> str:
    """Run a merge but for its commit, and return its plan with times, and what was read and written.

    The files that are written are deleted again. Bytes and requests are those of the process during the run,
    including concurrent reads.

    Args:
        snapshot, rules: see `explained_merge`.
        source: the rows.

    Raises:
        SchemaError, ExpressionError, MergeError, UnsupportedFormatError: see `merge_rows`.
    """
    start, counted = time.perf_counter(), read_counts()
    merge = Merge.plan(snapshot, source, rules)
    merge.match()
    matched, compared = time.perf_counter(), read_counts()
    written = merge.write()
    end, copied = time.perf_counter(), read_counts()
    added = [fragment.SerializeToString() for fragment in written.added]
    delete_fragment_files(snapshot.store, snapshot.root, added, snapshot.bases)
    metrics = [
        f"elapsed={(end - start) * 1000:.3f}ms, metrics=[{_written(merge, written)}]",
        f"metrics=[{_read(copied - compared)}]",
        f"elapsed={(matched - start) * 1000:.3f}ms, metrics=[{_found(merge)}]",
        f"metrics=[{_scanned(merge, compared - counted)}]",
        f"metrics=[output_rows={merge.source.held.num_rows}, spilled={source.spilled}]",
    ]
    return _tree(_steps(merge, metrics))


def _steps(merge: Merge, metrics: Sequence[str]) -> list[tuple[int, str]]:
    """Return depth and text of each step: the write, what is copied, the join, and its two sides."""
    rules = merge.rules
    wrote, copied, joined, read, drawn = (f", {metric}" if metric else "" for metric in metrics)
    on = ", ".join(key.name for key in merge.keys)
    steps = [(0, f"MergeInsert: on=[{on}], {_rules(merge)}{wrote}")]
    fields = [field.name for field in merge.base.schema.fields]
    missing = [name for name in fields if name not in merge.source.schema.names]
    if rules.matched == "update":
        steps.append((1, f"TakeUpdatedRows: kept_columns=[{', '.join(missing)}]{copied}"))
    if rules.insert and missing:
        steps.append((1, f"InsertNulls: columns=[{', '.join(missing)}]"))
    depth = steps[-1][0] + 1
    pairs = ", ".join(f"({key.name}, {key.name})" for key in merge.keys)
    kind = _JOINS[rules.delete_missing, rules.insert]
    steps.append((depth, f"HashJoinExec: mode=SourceKeysInMemory, join_type={kind}, on=[{pairs}]{joined}"))
    steps += [(depth + 1, f"{_table_side(merge)}{read}")]
    if merge.lookup is None or merge.lookup.method != "nothing":
        steps += [(depth + 2, step) for step in _index_steps(merge)]
    return [*steps, (depth + 1, f"Source: projection=[{', '.join(merge.source.schema.names)}]{drawn}")]


def _rules(merge: Merge) -> str:
    rules = merge.rules
    matched = _MATCHED[rules.matched]
    if merge.condition is not None:
        matched = f"UpdateIf({condition_text(merge.condition.condition)})"
    unmatched = "InsertAll" if rules.insert else "DoNothing"
    gone = "Delete" if rules.delete_missing else "Keep"
    if merge.missing is not None:
        gone = f"DeleteIf({condition_text(merge.missing)})"
    return f"when_matched={matched}, when_not_matched={unmatched}, when_not_matched_by_source={gone}"


def _table_side(merge: Merge) -> str:
    scan = merge.scan()
    line = f"LanceRead: uri={scan.store.uri(scan.root)}, projection=[{', '.join(scan.names)}]"
    line += f", num_fragments={len(scan.fragments)}, version={scan.manifest.version}, rows={scan.count()}"
    if merge.lookup is None:
        return line
    task_ids = {task.message.id for task in merge.lookup.tasks}
    gone = [str(fragment.id) for fragment in scan.fragments if fragment.id not in task_ids]
    if gone:
        text = ", ".join(gone[:20]) + (f", and {len(gone) - 20} more" if len(gone) > 20 else "")
        line += f", pruned_fragments=[{text}] of {len(scan.fragments)}"
    lists = sum(task.selection is not None for task in merge.lookup.tasks)
    return f"{line}, row_lists={lists} of {len(task_ids)} fragments" if lists else line


def _index_steps(merge: Merge) -> list[str]:
    """Return the indices that are asked where keys are; before there are keys, those that may be asked."""
    if merge.rules.delete_missing and merge.missing is None:
        return []
    words = {"keys": "is one of", "range": "is between the least and the greatest of"}
    how = "is among" if merge.lookup is None else words[merge.lookup.method]
    return [
        f"ScalarIndexQuery: query=[{column} {how} the source's keys]@{name}({kind})"
        for column, name, kind in key_indices(merge.scan(), merge.keys)
    ]


def _written(merge: Merge, written: Written) -> str:
    inserted, updated, deleted = merge.counts(written)
    sizes = [file.file_size_bytes for fragment in written.added for file in fragment.files]
    done = f"bytes_written={sum(sizes)}, num_files_written={len(sizes)}, num_inserted_rows={inserted}"
    return f"{done}, num_updated_rows={updated}, num_deleted_rows={deleted}"


def _found(merge: Merge) -> str:
    return f"source_keys={merge.index.size}, matched_keys={int(merge.seen.sum())}"


def _scanned(merge: Merge, counts: ReadCounts) -> str:
    assert merge.lookup is not None
    fragments = f"fragments_scanned={len(merge.lookup.tasks)}, rows_scanned={merge.compared}"
    return f"{fragments}, {_read(counts)}"


def _read(counts: ReadCounts) -> str:
    done = f"bytes_read={counts.bytes}, iops={counts.reads}, requests={counts.requests}"
    return f"{done}, cache_hits={counts.cache_hits}"


def _tree(steps: Sequence[tuple[int, str]]) -> str:
    return "".join(f"{'  ' * depth}{line}\n" for depth, line in steps)
