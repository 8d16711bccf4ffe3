"""Publishing our Java classes in the driver's JVM.

Spark brings the compiler (Janino). The one class that is needed at once, `LanceUnits`, is compiled here and added to
the class loader that Spark itself asks for catalogs and data sources; it compiles each of `UNITS` when a class of
it is first asked for. What was compiled is kept in a folder of the user's, by content and Spark release.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["UNITS", "class_loader", "publish"]

_FOLDER = Path(__file__).parent.parent / "jvm"
_FIRST = "LanceUnits"
_FIRST_CLASS = f"spark_lance.{_FIRST}"
_ADDRESS = "lance-units:/"

# The units that are compiled when they are first used: a source file each, named like its class in the package
# spark_lance.sql. One that does not fit a release of Spark is missing there, and nothing else.
UNITS = ("Bridge", "LanceCatalog", "LanceProcedures")


@cache
def _sources() -> dict[str, str]:
    return {name: (_FOLDER / f"{name}.java").read_text() for name in (_FIRST, *UNITS)}


def class_loader(spark: Any) -> Any | None:
    """Return the loader of the driver's JVM that classes can be added to; None if it has none."""
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    while loader is not None and "MutableURLClassLoader" not in loader.getClass().getName():
        loader = loader.getParent()
    return loader


def publish(spark: Any, answers: Any) -> bool:
    """Let the classes of `UNITS` be found in a session's JVM, and their questions be answered by Python.

    Args:
        spark: a classic session.
        answers: a `java.util.function.BiFunction` in Python: (text of a question, object) -> text of the answer.

    Returns:
        Whether there is a loader that classes can be added to.
    """
    loader = class_loader(spark)
    if loader is None:
        return False
    jvm = spark._jvm
    folder = _cache_folder(spark.version)
    if not _is_loaded(jvm, loader):
        _compile_first(jvm, loader, folder)
        first = loader.loadClass(_FIRST_CLASS)
        arguments = spark._sc._gateway.new_array(jvm.java.lang.Object, 2)
        arguments[0], arguments[1] = loader, str(folder / "units")
        units = first.getConstructors()[0].newInstance(arguments)
        for name in UNITS:
            units.add(name, _sources()[name])
        loader.addURL(jvm.java.net.URL(None, _ADDRESS, units))
    else:
        arguments = spark._sc._gateway.new_array(jvm.java.lang.Object, 2)
        arguments[0], arguments[1] = loader, None
        units = loader.loadClass(_FIRST_CLASS).getConstructors()[0].newInstance(arguments)
    units.answerBy(answers)
    return True


def _is_loaded(jvm: Any, loader: Any) -> bool:
    """Whether a session of the same JVM has published the classes before."""
    return any(str(url.toString()) == _ADDRESS for url in loader.getURLs())


def _compile_first(jvm: Any, loader: Any, folder: Path) -> None:
    """Add `LanceUnits` to the loader."""
    target = folder / "first" / "spark_lance"
    if not (target / f"{_FIRST}.class").exists():
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.setSourceVersion(8)
        compiler.setTargetVersion(8)
        compiler.cook(_sources()[_FIRST])
        codes = compiler.getBytecodes()
        target.mkdir(parents=True, exist_ok=True)
        # The class that names the others comes last: whoever sees it sees all.
        for name in sorted(codes.keySet(), key=lambda name: (name == _FIRST_CLASS, name)):
            path = target / f"{name.rpartition('.')[2]}.class"
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_bytes(bytes(codes.get(name)))
            fresh.replace(path)
    # File.toURI() ends a folder's address with '/', by which the loader knows it.
    loader.addURL(jvm.java.io.File(str(folder / "first")).toURI().toURL())


def _cache_folder(release: str) -> Path:
    """Return a folder that only this user can write, for classes of this content and Spark release."""
    text = "\0".join(f"{name}\0{source}" for name, source in sorted(_sources().items()))
    name = f"{release}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(home) / "spark-lance" / "java" / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
        private = about.st_uid == os.getuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if private and os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass  # no home, or a read-only one: classes live as long as this process
    return _own_folder(name)


@cache
def _own_folder(name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"spark-lance-{name}-"))
