"""Processor time of each stage of a write without Spark, on one thread.

    python -m benchmarks.bench_write [--repeat K]

Every stage is a set of functions of the writer. Its time is the sum of their times, without the stages that
they call. The last column is a lower bound: the time to copy the bytes that the stage must touch, at the
speed of a copy on this machine. See benchmarks/NOTES.md.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import spark_lance
from benchmarks.columns import COLUMNS, flat_vectors
from benchmarks.harness import Results, parser
from benchmarks.tables import real_flights
from spark_lance.file import writer
from spark_lance.file.v2_1.encodings import general
from spark_lance.file.v2_1.encodings.general import CompressedText
from spark_lance.file.v2_1.write import field_writer
from spark_lance.io.local import LocalOutput
from spark_lance.table.inserts import write_plan
from spark_lance.table.writing.align import Aligner

# Stage -> the functions of which it consists: (module or class, name).
STAGES: dict[str, list[tuple[Any, str]]] = {
    "fit to the table's schema": [(Aligner, "align")],
    "gather rows of a page": [(writer, "join")],
    "levels of nulls and lists": [(field_writer, "ravel")],
    "choose: samples": [(field_writer, "compress_pieces"), (field_writer, "_sample_chunks")],
    "choose: dictionaries": [(field_writer, "number_words"), (field_writer, "encode_dictionary")],
    "choose: widths, runs, the rest": [(field_writer, "choose")],
    "compress": [
        (general, "compress_pieces"),
        (general, "compress_block"),
        (CompressedText, "chunk"),
    ],
    "encode, lay out chunks": [(field_writer, "mini_block_page"), (field_writer, "full_zip_page")],
    "hand to the system": [(LocalOutput, "write"), (LocalOutput, "close")],
    "commit": [(write_plan, "commit_or_discard")],
}
_OTHER = "all else"
_TABLES: dict[str, Callable[[], pa.Table]] = {
    "flights": real_flights,
    "vectors": lambda: flat_vectors(40_000, 128),
    "text": COLUMNS["FSST text, URLs"][0],
}


class _Clock:
    """Adds up the own time of stages that call each other."""

    def __init__(self) -> None:
        self.seconds_by_stage: dict[str, float] = {}
        self._open = [_OTHER]
        self._since = time.process_time()

    def switch(self, stage: str | None) -> None:
        """Enter a stage, or leave the current one."""
        now = time.process_time()
        current = self._open[-1]
        self.seconds_by_stage[current] = self.seconds_by_stage.get(current, 0.0) + now - self._since
        self._since = now
        if stage is None:
            self._open.pop()
        else:
            self._open.append(stage)


def _timed(clock: _Clock, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        clock.switch(stage)
        try:
            result = function(*arguments, **options)
            return list(result) if isinstance(result, Iterator) else result
        finally:
            clock.switch(None)

    return run


@contextmanager
def watched() -> Iterator[_Clock]:
    """Measure the stages of what is written meanwhile."""
    clock = _Clock()
    originals = [(place, name, getattr(place, name)) for places in STAGES.values() for place, name in places]
    for stage, places in STAGES.items():
        for place, name in places:
            setattr(place, name, _timed(clock, stage, getattr(place, name)))
    try:
        yield clock
    finally:
        clock.switch(None)
        for place, name, function in originals:
            setattr(place, name, function)


def budget(table: pa.Table, repeat: int, folder: Path) -> dict[str, float]:
    """Return the seconds of every stage of the fastest of some writes."""
    best: dict[str, float] = {}
    for turn in range(repeat + 1):
        with watched() as clock:
            spark_lance.write_dataset(table, folder / str(turn))
        shutil.rmtree(folder / str(turn))
        # The first one imports.
        if turn and (not best or sum(clock.seconds_by_stage.values()) < sum(best.values())):
            best = clock.seconds_by_stage
    return best


def copy_seconds(size: int) -> float:
    """Return the seconds that a copy of some bytes takes."""
    data, out = np.ones(size, np.uint8), np.empty(size, np.uint8)
    out[:] = data
    start = time.process_time()
    out[:] = data
    return time.process_time() - start


def main() -> None:
    """Print the budgets."""
    options = parser(__doc__)
    options.add_argument("--repeat", type=int, default=7)
    arguments = options.parse_args()
    pa.set_cpu_count(1)
    results = Results("bench_write", arguments.keep)
    for name, make in _TABLES.items():
        table = make()
        with tempfile.TemporaryDirectory() as folder:
            seconds_by_stage = budget(table, arguments.repeat, Path(folder))
        total, copy = sum(seconds_by_stage.values()), copy_seconds(table.nbytes)
        print(
            f"{name}, {table.nbytes / 1e6:.1f} MB: {total * 1e3:.1f} ms; one copy of it {copy * 1e3:.1f} ms"
        )
        for stage in (*STAGES, _OTHER):
            seconds = seconds_by_stage.get(stage, 0.0)
            results.add(name, f"processor time, {stage}", "ms", seconds * 1e3, {})
            print(f"    {stage:32} {seconds * 1e3:8.2f} ms {seconds / total:6.1%}")
    results.save()


if __name__ == "__main__":
    main()
