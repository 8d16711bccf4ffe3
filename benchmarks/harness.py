"""Common parts of the benchmarks: sessions, single-threaded processes, alternation, and stored results.

With `--keep` a benchmark also writes its figures to `benchmarks/results/<version>.json`, where <version> is
the version of the package. The file is a list of records, one per line, with

    bench       the benchmark, such as "bench_file"
    case        the measured case; `case`, `metric` and `peer_name` identify a record of a benchmark
    metric      the kind of figure: "time", "processor time", "bytes", "recall", ...
    unit        "s", "ms", "B", "MB", "1/s", ...; "" without a unit
    ours        the figure of spark_lance
    peer        the figure of the other system, or null
    peer_name   the other system, such as "pylance" or "Spark Parquet"; "" if there is none
    ratio       above 1 if spark_lance is better; null without a peer
    machine     processor, cores, memory and operating system, in one line
    load        the load of the machine (one minute, per core) at the start of the benchmark
    versions    the versions of Python and of the measured packages
    date        the start of the benchmark, UTC, ISO 8601

A run replaces the records of its cases on the same machine, and keeps all others.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import spark_lance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "RESULTS", "Record", "Results", "Timed", "in_turns", "parser", "run_alone", "size_of", "start_spark",
]  # fmt: skip

# `pip install` compiles modules. Where this variable is set, each process that a benchmark starts, Spark's
# workers included, would compile the modules of the source tree again. That takes longer than much of what
# is measured here.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("pylance", "pyarrow", "numpy", "pyspark", "numba", "delta-spark")
_ONE_THREAD = {"LANCE_CPU_THREADS": "1", "LANCE_IO_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Record:
    """One figure of one run; the fields are those of the module's docstring."""

    bench: str
    case: str
    metric: str
    unit: str
    ours: float
    peer: float | None
    peer_name: str
    ratio: float | None
    machine: str
    load: float
    versions: dict[str, str]
    date: str

    @property
    def key(self) -> tuple[str, ...]:
        """Return the key of this figure. A later run with the same key replaces it."""
        return self.bench, self.case, self.metric, self.peer_name, self.machine


class Results:
    """The figures of one run of a benchmark. `save` stores them if the user asked for it."""

    def __init__(self, bench: str, keep: bool, *, folder: Path = RESULTS) -> None:
        """Start a run.

        Args:
            bench: name of the benchmark's module.
            keep: whether `save` writes anything.
            folder: where the files of all releases are.
        """
        self._keep = keep
        self._path = folder / f"{spark_lance.__version__}.json"
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        load = round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)
        self._blank = Record(bench, "", "", "", 0, None, "", None, machine(), load, versions(), now)
        self.records: list[Record] = []

    def add(
        self,
        case: str,
        metric: str,
        unit: str,
        ours: float,
        peers: Mapping[str, float] | None = None,
        *,
        more_is_better: bool = False,
    ) -> None:
        """Record our figure, next to the figure of each peer, if there are peers."""
        one = replace(self._blank, case=case, metric=metric, unit=unit, ours=_short(ours))
        if not peers:
            self.records.append(one)
        for name, peer in (peers or {}).items():
            ratio = _through(ours, peer) if more_is_better else _through(peer, ours)
            self.records.append(replace(one, peer=_short(peer), peer_name=name, ratio=ratio))

    def save(self) -> None:
        """Write the figures to the file of this release, replacing figures of an earlier run."""
        if not self._keep:
            return
        records = {record.key: record for record in read_results(self._path)}
        records.update({record.key: record for record in self.records})
        lines = ",\n".join(json.dumps(asdict(records[key])) for key in sorted(records))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(f"[\n{lines}\n]\n")
        print(f"\nkept in {self._path}")


def _short(figure: float) -> float:
    return float(f"{figure:.6g}")


def _through(one: float, other: float) -> float | None:
    return round(one / other, 4) if other else None


def read_results(path: Path) -> list[Record]:
    """Return the records of a release; empty if the file does not exist."""
    return [Record(**record) for record in json.loads(path.read_text())] if path.exists() else []


def machine() -> str:
    """Return a line with processor, cores, memory and operating system of this machine."""
    models = [line for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    name = models[0].partition(":")[2].strip() if models else platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{name}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}"


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package, and of the packages used in the benchmark."""
    result = {"spark_lance": spark_lance.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return result


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return an argument parser with the benchmark's docstring as help, and `--keep`."""
    result = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument(
        "--keep", action="store_true", help=f"write the figures to {RESULTS.parent.name}/{RESULTS.name}/"
    )
    return result


def in_turns(repeat: int, *actions: Callable[[], float]) -> list[float]:
    """Run the actions alternating (A B A B ...); return the minimum result of each."""
    best = [float("inf")] * len(actions)
    for _ in range(repeat):
        for i, action in enumerate(actions):
            best[i] = min(best[i], action())
    return best


@dataclass(frozen=True)
class Timed:
    """An action whose call returns its seconds."""

    action: Callable[[], object]

    def __call__(self) -> float:
        start = time.perf_counter()
        self.action()
        return time.perf_counter() - start


def size_of(folder: str) -> int:
    """Return the total size in bytes of all files below a folder."""
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


def run_alone(arguments: Sequence[str], *, one_core: bool = False, **environment: str) -> str:
    """Run Python with these arguments in a separate process; return its output.

    Args:
        arguments: of the interpreter: "-c" and a program, or "-m" and a module, and what they are given.
        one_core: give the process one core and one thread, as far as the system and the libraries let us.
        environment: variables to add to the environment.

    Raises:
        RuntimeError: the process failed; what it wrote to stderr is in the message.
    """
    command = [sys.executable, *arguments]
    if one_core and shutil.which("taskset"):
        command = ["taskset", "-c", str(max(os.sched_getaffinity(0))), *command]
    added = {**(_ONE_THREAD if one_core else {}), **environment}
    done = subprocess.run(command, env={**os.environ, **added}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:200]} failed:\n{done.stderr}")
    return done.stdout


def start_spark(config: Mapping[str, Any] | None = None) -> SparkSession:
    """Start a local Spark session with two cores and this package enabled; `config` adds settings."""
    from pyspark.sql import SparkSession

    from spark_lance.spark.java import prepare_environment

    prepare_environment()
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        **(config or {}),
    }
    session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return spark_lance.enable(session)
