"""Java classes of this package in the driver's JVM: compiled there, by the compiler that Spark brings along.

A class is *published* where the class loader that Spark looks things up with takes more classes, as that of
a driver which spark-submit or Python has started does: then all threads and sessions find it by name, and it
is compiled once per JVM. What was compiled is kept for the next JVM, in the user's cache folder, by content
and release of Spark:

    <cache>/spark-lance/java/<release>/<class>-<hash of the source>.jar
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tempfile
import threading
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["cache_folder", "can_publish", "load", "open_loader", "source"]

# Class -> its source, which may hold nested classes, too.
_SOURCES = {
    "lance": "CreatingSource.java",
    "lance.DefaultSource": "DefaultSource.java",
    "spark_lance.LanceLate": "LanceLate.java",
    "spark_lance.LanceParser": "LanceParser.java",
    "spark_lance.LancePruning": "LancePruning.java",
    "spark_lance.LanceStatements": "LanceStatements.java",
    "spark_lance.LanceUnits": "LanceUnits.java",
}
_FOLDER = Path(__file__).parent.parent / "jvm"
# Spark's class loader with a public addURL.
_OPEN_LOADER = "org.apache.spark.util.MutableURLClassLoader"
_JAVA = 8

_publishing = threading.Lock()


def can_publish(jvm: Any) -> bool:
    """Whether classes can be made known to all threads and sessions of this driver."""
    return open_loader(jvm) is not None


def load(jvm: Any, name: str) -> Any:
    """Return the class object of one of our classes, published if that is possible.

    Args:
        jvm: the session's view of its JVM.
        name: of the class, with its package.

    Raises:
        Py4JError: it does not compile with this release of Spark, or cannot be stored.
    """
    with _publishing:
        loader = _context_loader(jvm)
        if loader.getResource(name.replace(".", "/") + ".class") is None:
            text = source(_SOURCES[name])
            taking = open_loader(jvm)
            if taking is None:
                return _compiled(jvm, text).getClassLoader().loadClass(name)
            loader = taking
            loader.addURL(_archive(jvm, name, text))
        return loader.loadClass(name)


def source(file: str) -> str:
    """Return the text of a Java source of this package."""
    return (_FOLDER / file).read_text()


def cache_folder(jvm: Any) -> Path:
    """Return a folder that only this user can write, for classes compiled with this release of Spark.

    It lasts as long as the process where the user has no cache folder of that kind.
    """
    release = str(jvm.org.apache.spark.SparkContext.getOrCreate().version())
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        folder = home / "spark-lance" / "java" / release
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
    except (OSError, RuntimeError):  # no home, or a read-only one
        return _own_folder()
    private = about.st_uid == os.getuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if private and os.access(folder, os.W_OK) else _own_folder()


def open_loader(jvm: Any) -> Any | None:
    """Return the class loader that takes more classes, of those that Spark asks; None if there is none."""
    kind = jvm.java.lang.Class.forName(_OPEN_LOADER)
    loader = _context_loader(jvm)
    while loader is not None and not kind.isInstance(loader):
        loader = loader.getParent()
    return loader


def _compiled(jvm: Any, text: str) -> Any:
    """Return the compiler after its work."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(_context_loader(jvm))
    # Without these, static methods of interfaces cannot be called.
    compiler.setSourceVersion(_JAVA)
    compiler.setTargetVersion(_JAVA)
    compiler.cook(text)
    return compiler


def _archive(jvm: Any, name: str, text: str) -> Any:
    """Return the URL of an archive with the byte code of a source, which is compiled if it was not kept."""
    content = hashlib.sha256(text.encode()).hexdigest()[:16]
    file = cache_folder(jvm) / f"{name}-{content}.jar"
    if not file.exists():
        codes = _compiled(jvm, text).getBytecodes()
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as entries:
            for inner in codes.keySet():
                entries.writestr(inner.replace(".", "/") + ".class", bytes(codes.get(inner)))
        # Another process may do the same at the same time: the file comes into view whole.
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(archive.getvalue())
        fresh.replace(file)
    return jvm.java.io.File(str(file)).toURI().toURL()


def _context_loader(jvm: Any) -> Any:
    return jvm.java.lang.Thread.currentThread().getContextClassLoader()


@cache
def _own_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="spark-lance-"))
