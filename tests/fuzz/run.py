"""Fuzz stored objects and run random tests with fresh seeds, for some minutes: `make fuzz MINUTES=10 SEED=1`.

    python -m tests.fuzz.run [--minutes N] [--seed S] [--count N] [--only TEXT] [--no-tests]
    python -m tests.fuzz.run --replay FOLDER

prints the number of mutations for each target and outcome. A finding is an untyped error, a signal, a hang or
more than 1 GB of memory. Each one is kept in fuzz-findings/ with the mutated object, and `--replay` tries it
again. The exit code is 1 if there are findings.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.fuzz.targets import TARGETS
from tests.fuzz.worker import HARMLESS, MEMORY, replay

__all__ = ["Report", "fuzz_target"]

ROOT = Path(__file__).resolve().parents[2]
FINDINGS = ROOT / "fuzz-findings"
OUTCOMES = ("ok", "typed error", "untyped error", "signal", "hang", "memory")
# Seconds without an answer after which a worker hangs where Python cannot stop it; a busy machine is slow.
SILENCE, START = 120.0, 600.0
# A part of the time is for random tests.
TESTS_SHARE = 0.25


@dataclass
class Report:
    """Outcomes of one target.

    Attributes:
        counts: outcome -> number of mutations.
        findings: what each different finding is -> the folder of its first reproducer.
    """

    counts: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Path] = field(default_factory=dict)


def fuzz_target(
    name: str, seed: int, seconds: float, count: int, keep: Path, template: Path | None = None
) -> Report:
    """Try mutations of a target until the time or the count is used up.

    Args:
        name: of the target.
        seed: of the mutations.
        seconds, count: whichever is used up first.
        keep: the folder for reproducers.
        template: the valid object if it is made already.
    """
    report = Report()
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=base) as folder:
        if template is not None:
            shutil.copytree(template, Path(folder) / "template")
        end: float | None = None
        number = 0
        while number < count and (end is None or time.monotonic() < end):
            with _Worker(name, Path(folder), seed, number, count - number) as worker:
                if (failure := worker.start()) is not None:
                    # A target that cannot be fuzzed is a finding, and leaves the others alone.
                    report.findings[f"the template is not made: {failure}"] = Path(folder)
                    print(f"{name}: the template is not made: {failure}", flush=True)
                    return report
                # Making the tables is no part of the time.
                end = end or time.monotonic() + seconds
                number = _collect(worker, report, end, number, keep)
    return report


def _collect(worker: _Worker, report: Report, end: float, number: int, keep: Path) -> int:
    """Count the outcomes of a worker until it ends or the time is over; return the next mutation."""
    while time.monotonic() < end:
        line = worker.answer(SILENCE)
        if line is None:
            if worker.is_done:
                return sys.maxsize
            outcome, detail = worker.end_of_life()
        else:
            number, outcome, detail = int(line["number"]), line["outcome"], line["detail"]
        report.counts[outcome] += 1
        if outcome not in HARMLESS:
            what = f"{outcome}: {detail}"
            key = what.rpartition(" at ")[2] if " at " in what else what
            known = [other for other in report.findings if other.endswith(key)]
            if not known:
                report.findings[what] = worker.keep(keep, number if line is not None else None)
                print(f"{worker.name}: {what}\n    {report.findings[what]}", flush=True)
        if line is None:
            return worker.number + 1
        number += 1
    return number


class _Worker:
    """One process of `tests.fuzz.worker`."""

    def __init__(self, name: str, folder: Path, seed: int, first: int, count: int) -> None:
        self.name, self.folder = name, folder
        numbers = [str(seed), str(first), str(count)]
        command = [sys.executable, "-m", "tests.fuzz.worker", name, str(folder), *numbers]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self._errors = (folder / "stderr").open("w")
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        assert self._process.stdout is not None
        self._lines: IO[str] = self._process.stdout
        self._hangs = False

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._lines.close()
        self._errors.close()

    def start(self) -> str | None:
        """Wait until the template is made; return why it is not."""
        if self.answer(START) is not None:
            return None
        return (self.folder / "stderr").read_text()[-3000:]

    def answer(self, seconds: float) -> dict[str, str] | None:
        """Return the next line of the worker, None if it has ended or is silent."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._lines, selectors.EVENT_READ)
            end = time.monotonic() + seconds
            while not selector.select(1.0):
                if self._resident() > 2 * MEMORY or time.monotonic() > end:
                    self._hangs = time.monotonic() > end
                    self._process.kill()
                    return None
        line = self._lines.readline()
        answer: dict[str, str] | None = json.loads(line) if line.endswith("\n") else None
        return answer

    def _resident(self) -> int:
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * 4096

    @property
    def is_done(self) -> bool:
        """Whether the worker has tried everything."""
        return self._process.wait() == 0

    @property
    def number(self) -> int:
        """The mutation that was tried last."""
        return int(json.loads((self.folder / "at").read_text())["number"])

    def end_of_life(self) -> tuple[str, str]:
        """Return why the worker ended."""
        code = self._process.wait()
        if self._hangs:
            return "hang", f"no answer for {SILENCE:.0f} s"
        if code == -signal.SIGKILL:
            return "memory", "killed because of its memory"
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return "signal", f"{name} {(self.folder / 'stderr').read_text()[-300:]}"

    def keep(self, folder: Path, number: int | None) -> Path:
        """Keep a mutation, by default the one that ended the worker, so that it can be tried again."""
        source = self.folder if number is None else self.folder / f"finding-{number}"
        note = json.loads((source / "at").read_text())
        target = folder / f"{self.name.replace(' ', '-')}-{note['seed']}-{note['number']}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        shutil.copytree(self.folder / "template", target / "template")
        for name in ("mutated", "at"):
            shutil.copy(source / name, target / name)
        return target


def run_random_tests(minutes: float, seed: int) -> int:
    """Run the tests that Hypothesis draws examples for, with fresh examples; return pytest's exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "--random", f"--hypothesis-seed={seed}"]
    command += [f"--minutes={minutes}", "-m", "not stores and not site and not s3"]
    command += ["tests/file", "tests/io", "tests/table", "tests/index", "tests/memwal", "tests/reference"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HYPOTHESIS_PROFILE": "fuzz"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def _print(reports: dict[str, Report]) -> None:
    total: Counter[str] = Counter()
    width = max(map(len, reports)) + 2
    print(f"{'target':{width}}" + "".join(f"{outcome:>15}" for outcome in OUTCOMES))
    for name, report in reports.items():
        total.update(report.counts)
        print(f"{name:{width}}" + "".join(f"{report.counts[outcome]:15}" for outcome in OUTCOMES))
    print(f"{'total':{width}}" + "".join(f"{total[outcome]:15}" for outcome in OUTCOMES))
    for name, report in reports.items():
        for what, folder in report.findings.items():
            replay = f"\n    python -m tests.fuzz.run --replay {folder}" if folder.is_dir() else ""
            print(f"{name}: {what}{replay}")


def main() -> None:
    """Run with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long it takes, about")
    parser.add_argument("--seed", type=int, help="of the mutations and of the random tests")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="most mutations of each target")
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--no-tests", action="store_true", help="leave the random tests out")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--replay", type=Path, help="folder of a finding")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        replay(arguments.replay.resolve())
        return
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    targets = {name: target for name, target in TARGETS.items() if arguments.only in name}
    minutes = arguments.minutes * (1.0 if arguments.no_tests else 1 - TESTS_SHARE)
    unit = 60 * minutes * arguments.jobs / sum(target.share for target in targets.values())

    def fuzz(name: str) -> Report:
        report = fuzz_target(name, seed, unit * targets[name].share, arguments.count, FINDINGS)
        print(f"{name}: {dict(report.counts)}", flush=True)
        return report

    with ThreadPoolExecutor(arguments.jobs) as pool:
        reports = dict(zip(targets, pool.map(fuzz, targets), strict=True))
    _print(reports)
    code = 0
    if not arguments.no_tests:
        code = run_random_tests(arguments.minutes * TESTS_SHARE, seed)
    sys.exit(1 if code or any(report.findings for report in reports.values()) else 0)


if __name__ == "__main__":
    main()
