"""Runs the mutations of one target in a process with limits, and prints one line of JSON for each.

    python -m tests.fuzz.worker TARGET FOLDER SEED FIRST COUNT

FOLDER/template holds the valid object, FOLDER/mutated the bytes that are being tried, and FOLDER/at says
where they belong, so that the parent can keep them when the process dies. The address space of the process
and the CPU time of a mutation are limited, and the peak of the resident memory is measured for each.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.fuzz.targets import TARGETS, Target, run_steps

__all__ = ["HARMLESS", "MEMORY", "Tree", "replay", "resident", "try_table"]

# Bytes that a mutation may add to the resident memory, and to the address space, where more is refused.
MEMORY, ADDRESSES = 1 << 30, 3 << 30
CPU_SECONDS = 10.0
HARMLESS = ("ok", "typed error")


class TooSlow(BaseException):
    """A mutation takes too much CPU time."""


def _stop(*_: object) -> None:
    raise TooSlow


def resident(name: str) -> int:
    """Return the bytes of VmRSS, the memory in use, or of VmHWM, its peak since the last reset."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0]) << 10


class Tree:
    """A copy of a template folder that is put back in order after each use.

    It moves to another name each time, because the package remembers what it has read by its path.
    """

    def __init__(self, template: Path, folder: Path) -> None:
        self._contents = {
            file.relative_to(template): file.read_bytes()
            for file in sorted(template.rglob("*"))
            if file.is_file()
        }
        self._stats: dict[Path, tuple[int, int, int]] = {}
        self._folder = folder
        self._number = 0
        self.root = folder / "table-0"

    def restore(self) -> None:
        """Move on, and write or remove each file that differs from the template."""
        self._number += 1
        new = self._folder / f"table-{self._number}"
        if self.root.exists():
            self.root.rename(new)
        self.root = new
        extra = {file.relative_to(new) for file in new.rglob("*") if not file.is_dir() or file.is_symlink()}
        for file in extra - self._contents.keys():
            (new / file).unlink()
        for file, data in self._contents.items():
            if self._stats.get(file, ()) != _stat(new / file):
                self.write(file, data)
                self._stats[file] = _stat(new / file) or (0, 0, 0)

    def write(self, file: Path, data: bytes) -> None:
        """Put another file in the place of one, which may still be mapped."""
        target = self.root / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_bytes(data)

    def read(self, file: Path) -> bytes:
        """Return a file of the template."""
        return self._contents[file]


def _stat(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.lstat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def try_table(target: Target, root: Path, number: int, template: Path) -> tuple[str, str]:
    """Return the outcome of a mutation, and what it was."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    try:
        refusal = run_steps(target.steps(root, number, template))
        outcome, detail = ("ok", "") if refusal is None else ("typed error", f"{type(refusal).__name__}")
    except TooSlow:
        outcome, detail = "hang", _where(sys.exc_info()[1])
    except MemoryError as error:
        outcome, detail = "memory", f"{type(error).__name__}: {str(error)[:150]} at {_where(error)}"
    except BaseException as error:  # noqa: BLE001 (whatever else happens is what is looked for)
        outcome, detail = "untyped error", f"{type(error).__name__}: {str(error)[:150]} at {_where(error)}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    peak = resident("VmHWM") - before
    if peak > MEMORY and outcome in HARMLESS:
        outcome, detail = "memory", f"{peak >> 20} MB {detail}"
    return outcome, detail


def _where(error: BaseException | None) -> str:
    """Return the innermost place in the package."""
    frames = traceback.extract_tb(error.__traceback__) if error else []
    own = [frame for frame in frames if "spark_lance" in frame.filename] or list(frames)
    return f"{own[-1].filename.rpartition('spark_lance/')[2]}:{own[-1].lineno}" if own else "?"


def _run_alone() -> None:
    """Use one thread, so that the CPU time is that of the mutation."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def _limit() -> None:
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _stop)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def run(name: str, folder: Path, seed: int, first: int, count: int) -> None:
    """Try mutations `first` to `first + count` of a target."""
    target, template = TARGETS[name], folder / "template"
    if not template.exists():
        target.make(template)
    choices = target.choices(template)
    tree = Tree(template, folder)
    for warm in range(8):
        tree.restore()
        (tree.root / "mutated").write_text(str(choices[0][0]))
        refusal = run_steps(target.steps(tree.root, warm, template))
        if refusal is not None:
            raise AssertionError(f"the template of {name!r} is refused: {refusal}")
    _limit()
    _say(ready=len(choices))
    for number in range(first, first + count):
        rng = random.Random(f"{name} {seed} {number}")
        np.random.seed(number)
        tree.restore()
        file, mutation = target.choose(choices, rng)
        data = mutation(tree.read(file), rng)
        note: Mapping[str, object] = {"target": name, "seed": seed, "number": number, "file": str(file)}
        (folder / "mutated").write_bytes(data)
        (folder / "at").write_text(json.dumps(note))
        tree.write(file, data)
        (tree.root / "mutated").write_text(str(file))
        outcome, detail = try_table(target, tree.root, number, template)
        if outcome not in HARMLESS:
            # A folder of its own: the next mutation may begin before the parent has looked.
            finding = folder / f"finding-{number}"
            finding.mkdir()
            for file_name in ("mutated", "at"):
                shutil.copy(folder / file_name, finding)
        _say(number=number, outcome=outcome, detail=detail)


def replay(folder: Path) -> None:
    """Try the mutation that a folder holds once more; an error that is a finding is raised."""
    _run_alone()
    note = json.loads((folder / "at").read_text())
    target, template = TARGETS[note["target"]], folder / "template"
    tree = Tree(template, folder)
    tree.restore()
    tree.write(Path(note["file"]), (folder / "mutated").read_bytes())
    (tree.root / "mutated").write_text(note["file"])
    _limit()
    run_steps(target.steps(tree.root, note["number"], template))
    outcome, detail = try_table(target, tree.root, note["number"], template)
    _say(number=note["number"], outcome=outcome, detail=detail)


def main() -> None:
    """Run with the arguments of the command line."""
    _run_alone()
    name, folder, *numbers = sys.argv[1:]
    run(name, Path(folder), *map(int, numbers))


if __name__ == "__main__":
    main()
