"""Java classes of this package in the driver's JVM: compiled there, by the compiler that Spark brings along.

A class is *published* where the class loader that Spark looks things up with takes more classes, as that of
a driver which spark-submit or Python has started does: then all threads and sessions find it by name, and it
is compiled once per JVM.
"""

from __future__ import annotations

import io
import threading
import zipfile
from pathlib import Path
from typing import Any

__all__ = ["can_publish", "load"]

# Class -> its source, which may hold nested classes, too.
_SOURCES = {
    "lance.DefaultSource": "DefaultSource.java",
    "spark_lance.LancePruning": "LancePruning.java",
}
_FOLDER = Path(__file__).parent.parent / "jvm"
# Spark's class loader with a public addURL.
_OPEN_LOADER = "org.apache.spark.util.MutableURLClassLoader"

_publishing = threading.Lock()


def can_publish(jvm: Any) -> bool:
    """Whether classes can be made known to all threads and sessions of this driver."""
    return _open_loader(jvm) is not None


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
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(loader)
            compiler.cook((_FOLDER / _SOURCES[name]).read_text())
            loader = _open_loader(jvm)
            if loader is None:
                return compiler.getClassLoader().loadClass(name)
            loader.addURL(_archive(jvm, compiler.getBytecodes()))
        return loader.loadClass(name)


def _archive(jvm: Any, codes: Any) -> Any:
    """Write the byte code of classes to a file that lasts as long as the JVM; return its URL."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in codes.keySet():
            archive.writestr(name.replace(".", "/") + ".class", bytes(codes.get(name)))
    file = jvm.java.io.File.createTempFile("spark-lance-", ".jar")
    file.deleteOnExit()
    Path(file.getPath()).write_bytes(content.getvalue())
    return file.toURI().toURL()


def _context_loader(jvm: Any) -> Any:
    return jvm.java.lang.Thread.currentThread().getContextClassLoader()


def _open_loader(jvm: Any) -> Any | None:
    """Return the class loader that takes more classes, of those that Spark asks; None if there is none."""
    kind = jvm.java.lang.Class.forName(_OPEN_LOADER)
    loader = _context_loader(jvm)
    while loader is not None and not kind.isInstance(loader):
        loader = loader.getParent()
    return loader
