"""How a read is run, as text: a tree of steps, the last on top."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyroaring import BitMap

from spark_lance.datasets.projection import Projection
from spark_lance.datasets.scan_request import ScanRequest
from spark_lance.expressions.predicate import Condition
from spark_lance.expressions.texts import condition_text
from spark_lance.io.counters import read_counts
from spark_lance.proto import table_pb2
from spark_lance.table.reading.pruning import uses_of
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.system_columns import SYSTEM_COLUMNS

_SHOWN_FRAGMENTS = 20


def explained(
    request: ScanRequest,
    projection: Projection,
    scan: Scan,
    condition: Condition | None,
    verbose: bool,
    searched: Sequence[str] = (),
) -> str:
    """Return the plan of a read.

    Args:
        request, projection: what is asked for.
        scan: what is read for it.
        condition: the filter, fitted to the table.
        verbose: open the fragments, and return the rows that page statistics leave in each of them.
        searched: how a search by vector compares rows: by an index, one by one, or both.
    """
    steps = []
    if projection.outputs is not None:
        steps.append(f"ProjectionExec: expr=[{', '.join(output.text for output in projection.outputs)}]")
    if request.blob_handling == "all_binary":
        steps.append("ReadBlobs: as bytes")
    if request.limit is not None or request.offset:
        steps.append(f"GlobalLimitExec: skip={request.offset or 0}, fetch={request.limit}")
    if request.order_by:
        steps.append(f"SortExec: expr=[{', '.join(str(ordering) for ordering in request.order_by)}]")
    if request.is_search:
        steps += _search_steps(request, condition, searched)
        condition = condition if request.prefilter else None
    steps += _scan_steps(scan, condition, verbose)
    return "\n".join("  " * depth + line for depth, line in enumerate(steps)) + "\n"


def analyzed(plan: str, parts: Iterable[pa.Table], scanned: int | None) -> str:
    """Return a plan after a run of it, with what came out and what was read for it.

    Args:
        plan: as `explained` gives it.
        parts: the rows.
        scanned: how many rows the scan decodes for them, None if that is not known; only then every row
            that the scan gives comes out.
    """
    start, cpu = time.perf_counter(), time.process_time()
    counted = read_counts()
    rows = size = batches = 0
    for part in parts:
        rows += part.num_rows
        size += part.nbytes
        batches += 1
    seconds, used = time.perf_counter() - start, time.process_time() - cpu
    measured = f"output_rows={rows}, output_batches={batches}, output_bytes={size}"
    read = read_counts() - counted
    head = f"AnalyzeExec: elapsed={seconds * 1000:.3f}ms, cpu={used * 1000:.3f}ms, metrics=[{measured}]\n"
    done = f"bytes_read={read.bytes}, iops={read.reads}, requests={read.requests}"
    done += f", cache_hits={read.cache_hits}"
    if scanned is not None:
        done = f"output_rows={rows}, rows_scanned={scanned}, {done}"
    lines = (
        f"{line}, metrics=[{done}]" if line.lstrip().startswith("LanceRead:") else line
        for line in plan.splitlines()
    )
    return head + "".join(f"  {line}\n" for line in lines)


def scanned_rows(request: ScanRequest, scan: Scan, condition: Condition | None) -> int | None:
    """Return how many rows a scan decodes; None if the rows that come out are not those that it gives.

    Opens the fragments that the condition leaves, for the statistics of their pages.
    """
    if request.is_search or request.limit is not None or request.offset:
        return None
    if condition is None:
        return int(scan.count())
    rows = 0
    for task in scan.tasks_for(condition):
        if task.selection is not None:
            rows += len(BitMap.deserialize(task.selection))
        else:
            rows += sum(stop - start for start, stop in task.runs(condition)[0])
    return rows


def _search_steps(request: ScanRequest, condition: Condition | None, searched: Sequence[str]) -> list[str]:
    steps = []
    if condition is not None and not request.prefilter:
        steps.append(f"FilterExec: {condition_text(condition)}")
    if request.nearest is not None:
        options = {
            name: value for name, value in request.nearest.items() if name != "q" and value is not None
        }
        probes = options.pop("nprobes", None)
        if probes is not None:
            options |= {"minimum_nprobes": probes, "maximum_nprobes": probes}
        options.pop("use_index", None)
        if "minimum_nprobes" in options:
            most = options.pop("maximum_nprobes", None)
            options["maximum_nprobes"] = "None" if most is None else f"Some({most})"
        said = ", ".join(f"{name}={value}" for name, value in options.items())
        steps += [f"{kind}: {said}" for kind in searched]
    else:
        steps.append(f"MatchQuery: query={request.full_text_query}")
    return steps


def _scan_steps(scan: Scan, condition: Condition | None, verbose: bool) -> list[str]:
    total = len(scan.fragments)
    tasks = scan.tasks_for(condition)
    remaining = {task.message.id for task in tasks}
    stored = [name for name in scan.names if name not in SYSTEM_COLUMNS]
    needed = () if condition is None else condition.columns
    read = ", ".join(dict.fromkeys([*stored, *(name for name in needed if name not in SYSTEM_COLUMNS)]))
    line = f"LanceRead: uri={scan.store.uri(scan.root)}, projection=[{read}], num_fragments={len(tasks)}"
    rows = sum(scan.live_rows(fragment) for fragment in scan.fragments if fragment.id in remaining)
    line += f", version={scan.manifest.version}, rows={rows}"
    if condition is None:
        return [f"{line}, full_filter=--"]
    line += f", full_filter={condition_text(condition)}"
    if len(tasks) < total:
        left = [fragment.id for fragment in scan.fragments if fragment.id not in remaining]
        line += f", pruned_fragments={_fragment_list(left)} of {total}"
    selected = [task for task in tasks if task.selection is not None]
    if selected:
        line += f", row_lists={len(selected)} of {len(tasks)} fragments"
    if verbose and (ranges := _page_ranges(tasks, condition)):
        line += f", page_ranges={ranges}"
    steps = [line]
    for pruner in scan.pruners:
        for text, name, kind in uses_of(pruner, condition):
            steps.append(f"ScalarIndexQuery: query=[{text}]@{name}({kind})")
    return steps


def _page_ranges(tasks: Sequence[Any], condition: Condition) -> str:
    """Return the runs of rows that page statistics leave, by fragment, if they leave out any."""
    ranges = []
    for task in tasks:
        if task.selection is None:
            runs, rows = task.runs(condition)
            if runs != [(0, rows)]:
                text = "+".join(f"{start}..{stop}" for start, stop in runs) or "none"
                ranges.append(f"{_number(task.message)}:{text} of {rows}")
    more = f" and {len(ranges) - _SHOWN_FRAGMENTS} more" if len(ranges) > _SHOWN_FRAGMENTS else ""
    return f"[{', '.join(ranges[:_SHOWN_FRAGMENTS])}{more}]" if ranges else ""


def _number(fragment: table_pb2.DataFragment) -> int:
    return fragment.id


def _fragment_list(numbers: Sequence[int]) -> str:
    more = f", and {len(numbers) - _SHOWN_FRAGMENTS} more" if len(numbers) > _SHOWN_FRAGMENTS else ""
    return f"[{', '.join(map(str, numbers[:_SHOWN_FRAGMENTS]))}{more}]"
