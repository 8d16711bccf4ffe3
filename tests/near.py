"""Runs the tests nearest to changed modules, the nearest first, within a time budget.

python -m tests.near                          changes since the branch main, committed or not
python -m tests.near spark_lance/io/store.py  these files
python -m tests.near --seconds 300            more time (the default is 120)
python -m tests.near --list                   prints the files and does not run them

A test file is near if few imports lead from it to a changed module and if it is in the mirrored folder. The
file at the mirrored path (spark_lance/io/store.py, tests/io/test_store.py) comes first. A Java file counts as
the Python modules and the tests that name its class. Arguments after "--" go to pytest.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.import_graph import MODULES, NAMES, ROOT, distances, module_name, test_modules

__all__ = ["DURATIONS", "choose", "main", "nearest_tests"]

# Seconds of each test file, from the last run that was recorded (pytest --record-durations).
DURATIONS = ROOT / "tests" / "durations.json"
UNKNOWN_SECONDS = 5.0
# Spark starts once for a run, in about this time.
START_SECONDS = 10.0


def changed_files() -> list[Path]:
    """Return the files that differ from the branch main or are not committed."""
    commands = (["diff", "--name-only", "main..."], ["diff", "--name-only", "HEAD"])
    others = ["ls-files", "--others", "--exclude-standard"]
    names: set[str] = set()
    for command in (*commands, others):
        output = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True)
        names |= set(output.stdout.splitlines())
    return [ROOT / name for name in sorted(names) if (ROOT / name).is_file()]


def modules_of(paths: Iterable[Path]) -> set[str]:
    """Return the modules of the package and of the tests that files belong to."""
    result = set()
    for path in paths:
        if path.suffix == ".py":
            result.add(module_name(path.resolve()))
        elif path.suffix == ".java":
            users = [*MODULES, *test_modules().values()]
            result |= {module_name(user) for user in users if path.stem in user.read_text()}
    return result & (NAMES | test_modules().keys())


def mirrored(name: str) -> str:
    """Return the dotted name of the test module at the path that mirrors a module's."""
    package, _, stem = name.removeprefix("spark_lance.").rpartition(".")
    return ".".join(part for part in ("tests", package, f"test_{stem}") if part)


def _common_folders(test: str, module: str) -> int:
    pairs = zip(test.split(".")[1:-1], module.split(".")[1:-1], strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def nearest_tests(changed: Iterable[str]) -> list[str]:
    """Return the dotted names of the test modules that depend on some modules, the nearest first."""
    names = set(changed)
    steps = distances(names)
    steps |= {mirrored(name): 0 for name in names if mirrored(name) in test_modules()}

    def key(test: str) -> tuple[int, int, str]:
        folders = max(_common_folders(test, name) for name in names)
        return steps[test] - folders, -folders, test

    tests = [name for name in test_modules() if name in steps and ".test_" in name]
    return sorted(tests, key=key)


def choose(tests: Sequence[str], durations: Mapping[str, float], seconds: float) -> list[str]:
    """Return the files of the nearest tests that fit into a time budget, at least one.

    Args:
        tests: dotted names, the nearest first.
        durations: seconds by path relative to the repository.
        seconds: the budget.

    Returns:
        Paths relative to the repository, in the order of the distance.
    """
    result: list[str] = []
    left = seconds - START_SECONDS
    for name in tests:
        path = str(test_modules()[name].relative_to(ROOT))
        cost = durations.get(path, UNKNOWN_SECONDS)
        if cost <= left or not result:
            result.append(path)
            left -= cost
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Choose tests and run them; return pytest's exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="changed files; the default asks git")
    parser.add_argument("--seconds", type=float, default=120.0, help="time budget, from recorded durations")
    parser.add_argument("--list", action="store_true", help="print the test files and do not run them")
    words = list(sys.argv[1:] if arguments is None else arguments)
    extra = words[words.index("--") + 1 :] if "--" in words else []
    options = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    files = [path.resolve() for path in options.files] or changed_files()
    tests = nearest_tests(modules_of(files))
    durations = json.loads(DURATIONS.read_text()) if DURATIONS.is_file() else {}
    chosen = choose(tests, durations, options.seconds) if tests else []
    sys.stdout.write(f"{len(files)} changed files, {len(tests)} dependent test files, {len(chosen)} chosen\n")
    if options.list or not chosen:
        sys.stdout.write("".join(f"{path}\n" for path in chosen))
        return 0
    return subprocess.run([sys.executable, "-m", "pytest", *chosen, *extra], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
