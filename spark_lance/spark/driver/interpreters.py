"""The Python that Spark's workers run: whether it can read Lance tables, said before a job fails for it.

Workers run what `PYSPARK_PYTHON` names, or else `python3` on the PATH, which need not be the driver's Python
nor have this package. And to find the sources that packages bring, Spark imports every package whose name
begins with `pyspark_`: one that cannot be imported hides all of them.

Only what can be run on the driver's machine is looked at; it is there that Spark plans.
"""

from __future__ import annotations

import json
import logging
import pkgutil
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from spark_lance.errors import WorkerPythonError

logger = logging.getLogger(__name__)

_PREFIX, _OURS = "pyspark_", "pyspark_lance"
_SECONDS = 60
_REMEDY = f"set PYSPARK_PYTHON={sys.executable} before the session starts"
# Parts of the error that Spark reports for a worker that cannot load our functions.
_LACKING = ("No module named 'spark_lance'", "No module named 'pyspark_lance'")

_PROGRAM = """
import importlib, json, pkgutil, sys
broken = {}
for name in sorted(info.name for info in pkgutil.iter_modules() if info.name.startswith("pyspark_")):
    try:
        importlib.import_module(name)
    except BaseException as error:
        broken[name] = type(error).__name__ + ": " + " ".join(str(error).split())
try:
    import spark_lance
    release = spark_lance.__version__
except ImportError:
    release = None
print(json.dumps({"version": "%d.%d" % sys.version_info[:2], "release": release, "broken": broken}))
"""


@dataclass(frozen=True)
class Interpreter:
    """The packages of a Python program.

    Attributes:
        version: such as "3.11".
        release: of this package; None if it is not installed there.
        broken: packages that Spark imports and that fail, with their errors.
    """

    version: str
    release: str | None
    broken: tuple[tuple[str, str], ...]


@cache
def probe(program: str) -> Interpreter | None:
    """Ask a Python program what it has; None if it does not start or does not answer."""
    try:
        process = subprocess.run(
            [program, "-c", _PROGRAM], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        facts = json.loads(process.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return Interpreter(facts["version"], facts["release"], tuple(sorted(facts["broken"].items())))


def check_workers(spark: Any) -> bool:
    """Warn, a line each, of what keeps the workers of a session from reading Lance tables.

    Args:
        spark: a classic session.

    Returns:
        Whether Spark finds the format by itself, as far as one can see here.
    """
    named = str(spark.sparkContext.pythonExec)
    program = shutil.which(named)
    if program is None:
        _warn(f"Spark's workers are to run {named}, which is not there: {_REMEDY}")
        return False
    if _is_this(Path(program)) and not _others():
        return True
    interpreter = probe(program)
    if interpreter is None:
        _warn(f"Spark's workers are to run {program}, which does not start: {_REMEDY}")
        return False
    for line in _complaints(program, interpreter):
        _warn(line)
    return interpreter.release is not None and not interpreter.broken


@cache
def _warn(line: str) -> None:
    """Say a line once."""
    logger.warning("%s", line)


def check_package(spark: Any) -> None:
    """Refuse tasks in workers that certainly lack this package, before a job fails with their traceback.

    Only workers on the driver's machine are certain, and only if nothing else brings them the package.

    Args:
        spark: a classic session.

    Raises:
        WorkerPythonError: the workers' Python starts, and has no spark_lance.
    """
    context = spark.sparkContext
    if not str(context.master).startswith("local") or _brings_packages(context):
        return
    program = shutil.which(str(context.pythonExec))
    if program is None or _is_this(Path(program)):
        return
    interpreter = probe(program)
    if interpreter is not None and interpreter.release is None:
        raise WorkerPythonError(
            f"the Python of Spark's workers, {program}, has no spark_lance: install it there, or {_REMEDY}"
        )


def _brings_packages(context: Any) -> bool:
    """Return whether a session sends Python packages to its workers, or sets their PYTHONPATH."""
    includes = getattr(context, "_python_includes", ())
    path = context.environment.get("PYTHONPATH") or context.getConf().get("spark.executorEnv.PYTHONPATH")
    return bool(includes) or path is not None


def lacks_package(problem: Exception) -> WorkerPythonError | None:
    """Return what is to be said of a failed job whose workers lack this package; None of others."""
    text = str(problem)
    if not any(sign in text for sign in _LACKING):
        return None
    return WorkerPythonError(
        f"the Python of Spark's workers has no spark_lance: install it there, or {_REMEDY}"
    )


def _is_this(program: Path) -> bool:
    """Return whether a program is this Python, by its name or another one in the same folder.

    Links are not followed out of it: those of two environments may lead to one Python.
    """
    this = Path(sys.executable)
    return program.absolute().parent == this.absolute().parent and program.samefile(this)


def _others() -> list[str]:
    """Return the packages besides ours that Spark imports to find sources."""
    names = {info.name for info in pkgutil.iter_modules() if info.name.startswith(_PREFIX)}
    return sorted(names - {_OURS})


def _complaints(program: str, interpreter: Interpreter) -> list[str]:
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    lines = []
    if interpreter.version != ours:
        lines.append(
            f"Spark's workers run {program} (Python {interpreter.version}), this driver runs Python {ours}, "
            f"and Spark refuses jobs for that: {_REMEDY}"
        )
    if interpreter.release is None:
        lines.append(
            f"Spark's workers run {program}, which has no spark_lance: install it there, or {_REMEDY}"
        )
    lines += [
        f"the package {name} cannot be imported ({error}), and so Spark finds none of the sources that "
        "packages bring: mend or uninstall it"
        for name, error in interpreter.broken
        if name != _OURS
    ]
    return lines
