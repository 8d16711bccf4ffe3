"""Checks whether the Python of Spark's workers can read Lance tables, before a job fails.

Workers run the program in `PYSPARK_PYTHON`, or else `python3` on the PATH. That may be another Python than
the driver's, without this package. To find data sources, Spark imports every package whose name begins with
`pyspark_`: if one import fails, Spark finds no data source of any package.

The checks run programs on the driver's machine only, because Spark plans there.
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

_PREFIX, _OUR_PACKAGE = "pyspark_", "pyspark_lance"
_SECONDS = 60
_REMEDY = f"set PYSPARK_PYTHON={sys.executable} before the session starts"
# Parts of the error that Spark reports for a worker that cannot load our functions.
_MISSING_PACKAGE = ("No module named 'spark_lance'", "No module named 'pyspark_lance'")

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
    """Run a Python program and return its packages; None if it does not start or does not answer."""
    try:
        process = subprocess.run(
            [program, "-c", _PROGRAM], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        facts = json.loads(process.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return Interpreter(facts["version"], facts["release"], tuple(sorted(facts["broken"].items())))


def check_workers(spark: Any) -> bool:
    """Log a warning for each reason why the workers of a session cannot read Lance tables.

    Args:
        spark: a classic session.

    Returns:
        Whether Spark finds the format by itself, as far as the driver can tell.
    """
    command = str(spark.sparkContext.pythonExec)
    program = shutil.which(command)
    if program is None:
        _warn(f"the Python of Spark's workers, {command}, does not exist: {_REMEDY}")
        return False
    if _is_current(Path(program)) and not _other_packages():
        return True
    interpreter = probe(program)
    if interpreter is None:
        _warn(f"the Python of Spark's workers, {program}, does not start: {_REMEDY}")
        return False
    for line in _problems(program, interpreter):
        _warn(line)
    return interpreter.release is not None and not interpreter.broken


@cache
def _warn(line: str) -> None:
    """Log a line once."""
    logger.warning("%s", line)


def check_package(spark: Any) -> None:
    """Check that workers have this package, before a job fails with their traceback.

    Only workers on the driver's machine can be checked, and only if Spark does not send them the package.

    Args:
        spark: a classic session.

    Raises:
        WorkerPythonError: the workers' Python starts, and has no spark_lance.
    """
    context = spark.sparkContext
    if not str(context.master).startswith("local") or _sends_packages(context):
        return
    program = shutil.which(str(context.pythonExec))
    if program is None or _is_current(Path(program)):
        return
    interpreter = probe(program)
    if interpreter is not None and interpreter.release is None:
        raise WorkerPythonError(
            f"the Python of Spark's workers, {program}, has no spark_lance: install it there, or {_REMEDY}"
        )


def _sends_packages(context: Any) -> bool:
    """Return whether a session sends Python packages to its workers, or sets their PYTHONPATH."""
    includes = getattr(context, "_python_includes", ())
    path = context.environment.get("PYTHONPATH") or context.getConf().get("spark.executorEnv.PYTHONPATH")
    return bool(includes) or path is not None


def missing_package_error(problem: Exception) -> WorkerPythonError | None:
    """Return the error for a job that failed because its workers lack this package; None for other jobs."""
    text = str(problem)
    if not any(sign in text for sign in _MISSING_PACKAGE):
        return None
    return WorkerPythonError(
        f"the Python of Spark's workers has no spark_lance: install it there, or {_REMEDY}"
    )


def _is_current(program: Path) -> bool:
    """Return whether a program is the running Python, perhaps by another name in the same folder.

    Links to other folders are not followed, because two environments may link to one Python.
    """
    this = Path(sys.executable)
    return program.absolute().parent == this.absolute().parent and program.samefile(this)


def _other_packages() -> list[str]:
    """Return the packages other than ours that Spark imports to find data sources."""
    names = {info.name for info in pkgutil.iter_modules() if info.name.startswith(_PREFIX)}
    return sorted(names - {_OUR_PACKAGE})


def _problems(program: str, interpreter: Interpreter) -> list[str]:
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
        f"the package {name} cannot be imported ({error}), so Spark finds no data source of any package: "
        "repair or uninstall it"
        for name, error in interpreter.broken
        if name != _OUR_PACKAGE
    ]
    return lines
