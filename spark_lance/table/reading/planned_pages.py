"""How many pages a planned read looks at, and how many it skips.

Footers of data files tell, which a plan does without; so pages are counted only of few fragments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyroaring import BitMap

from spark_lance.errors import LanceError
from spark_lance.expressions.predicate import Condition
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.scan_task import ScanTask

__all__ = ["PLANNED_FRAGMENTS", "planned_pages"]

# Fragments on a local disk whose footers are read to describe a plan; on other stores they cost requests.
PLANNED_FRAGMENTS = 16

_NOTHING = BitMap().serialize()


def planned_pages(
    scan: Scan, tasks: Sequence[ScanTask], condition: Condition | None, most: int | None = PLANNED_FRAGMENTS
) -> tuple[int, int] | None:
    """Return how many pages a scan reads at most, and how many it skips; opens all its files.

    Args:
        scan: the whole scan.
        tasks: the tasks that remain after pruning.
        condition: what they get.
        most: fragments that may be opened, and none in other stores than local disks; None for any.

    Returns:
        None if there are more fragments, or one of them cannot be opened: it may be one that is skipped, and
        of others the read itself says what is wrong.

    Raises:
        FormatError, UnsupportedFormatError: without `most`, see `ScanTask.pages`.
    """
    if most is None:
        return _counted(scan, tasks, condition)
    if len(scan.fragments) > most or not scan.store.is_local:
        return None
    try:
        return _counted(scan, tasks, condition)
    except (LanceError, OSError):
        return None


def _counted(scan: Scan, tasks: Sequence[ScanTask], condition: Condition | None) -> tuple[int, int]:
    numbers = {task.message.id for task in tasks}
    every = scan.tasks(() if condition is None else condition.columns)
    fields = tasks[0].fields if tasks else scan.fields
    others = [
        replace(task, fields=fields, selection=_NOTHING) for task in every if task.message.id not in numbers
    ]
    counts = [task.pages(condition) for task in (*tasks, *others)]
    return sum(read for read, _ in counts), sum(left for _, left in counts)
