"""Damages the small files of a table in every way and works with it, in a process of its own with limits.

    python damage_worker.py TABLE STRIDE WORK+WORK=FILE...

FILE is relative to the table; WORK is what is done with the table when the file is damaged. Every STRIDE-th
byte is changed in three ways, the file is cut at every STRIDE-th length, and it grows. All work must end,
soon and in little memory, or raise a LanceError. Prints the outcomes as JSON: counts, and the first of each
kind of failure.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

import spark_lance
from spark_lance.errors import LanceError
from spark_lance.io.store import open_store
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.operations.append import append_message
from spark_lance.table.versions.versions import load_latest, load_version

MEMORY = 1 << 30
# Seconds of work, so that a busy machine does not matter, and seconds with waits.
TIME_LIMIT, PATIENCE = 5.0, 120.0


def damages(good: bytes, stride: int) -> Iterator[bytes]:
    """The file with one byte changed, cut, and grown."""
    for position in range(0, len(good), stride):
        for mask in (0x01, 0x80, 0xFF):
            yield good[:position] + bytes([good[position] ^ mask]) + good[position + 1 :]
        yield good[:position]
    yield good + b"\0"
    yield good + good
    yield b"\0" * 64 + good
    yield good[:-16] + bytes(1000) + good[-16:]


def read(path: str) -> None:
    """Read everything that a version tells."""
    dataset = spark_lance.dataset(path)
    manifest = dataset.manifest
    assert manifest.version > 0
    dataset.count_rows()
    dataset.to_table()
    _ = manifest.indices, manifest.timestamp, manifest.config, manifest.max_fragment_id
    read_transaction(dataset.table, manifest)


def commit(path: str) -> None:
    """Commit on the newest version, first as a writer that was slow and has to look at others' versions."""
    table = TableRef(*open_store(path))
    for behind in (2, 0):
        version = load_latest(table).version
        committed = commit_operation(table, append_message([]), read_version=version - behind)
        # The next version must be one that can be read.
        again = load_version(table, committed.version)
        assert list(again.fragments) == list(committed.fragments)


def delete(path: str) -> None:
    """Delete a row, which merges deletion files."""
    spark_lance.dataset(path).delete("a = 3")
    spark_lance.dataset(path).to_table()


def look(path: str) -> None:
    """Read tags, branches and all versions."""
    dataset = spark_lance.dataset(path)
    dataset.tags.list()
    dataset.branches.list()
    dataset.versions()
    for name in ("one", "two"):
        dataset.checkout_version(name)


class SlowError(Exception):
    """Work takes too long."""


def too_slow(number: int, frame: object) -> None:
    raise SlowError(signal.Signals(number).name)


WORK: dict[str, Callable[[str], None]] = {"read": read, "commit": commit, "delete": delete, "look": look}


def limited(run: Callable[[str], None], path: str) -> str:
    """Return how it ended."""
    signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        run(path)
    except LanceError:
        return "error"
    except FileNotFoundError:
        # A changed path is as good as any other until one looks for it.
        return "missing"
    except Exception as error:  # noqa: BLE001 (whatever else a read does is what is looked for)
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:100]} ({where.filename}:{where.lineno})"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "fine"


def versions(path: str) -> set[Path]:
    return {*Path(path, "_versions").iterdir()}


def main() -> None:
    """Damage the files and print what came of it."""
    for sign in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(sign, too_slow)
    path, stride, *files = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
    present = versions(path)
    for run in WORK.values():
        run(path)
    for extra in versions(path) - present:
        extra.unlink()
    before = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (before + MEMORY, before + MEMORY))
    outcomes: dict[str, Counter[str]] = {}
    failures: dict[str, str] = {}
    for argument in files:
        chosen, file = argument.split("=", 1)
        target = Path(path, file)
        good = target.read_bytes()
        for number, damaged in enumerate(damages(good, stride)):
            if damaged == good:
                continue
            for name in chosen.split("+"):
                target.write_bytes(damaged)
                outcome = limited(WORK[name], path)
                if outcome not in ("fine", "error", "missing"):
                    failures.setdefault(outcome, f"{file}, damage {number}, {name}")
                    outcome = "failure"
                outcomes.setdefault(file, Counter())[f"{name} {outcome}"] += 1
                for extra in versions(path) - present:
                    extra.unlink()
        target.write_bytes(good)
    read(path)
    sys.stdout.write(json.dumps({"outcomes": outcomes, "failures": failures}))


if __name__ == "__main__":
    pa.set_cpu_count(1)
    main()
