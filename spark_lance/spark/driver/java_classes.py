"""Java classes of this package in the driver's JVM: compiled there, by the compiler that Spark contains.

A class is *published* if the class loader that Spark looks things up with accepts more classes, as in a
driver that spark-submit or Python has started. Then all threads and sessions find it by name, and it
is compiled once per JVM. Compiled classes are kept for the next JVM, in the user's cache folder, by content
and release of Spark:

    <cache>/spark-lance/java/<release>/<class>-<hash of the sources>.jar

Each attribute of PySpark's view of the JVM is a question to it, and one that looks through all archives for
what may be a package. So classes are named whole here, and everything else that is done in the JVM when a
session starts is done by `LanceStart`.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError

from spark_lance.io.user_cache import process_folder, user_cache
from spark_lance.spark.base.compat import java_class

# The root of the sources: folders are packages, and each file is named like its class.
FOLDER = Path(__file__).parent.parent / "jvm"
# Spark's class loader with a public addURL.
_OPEN_LOADER = "org.apache.spark.util.MutableURLClassLoader"
_JAVA = 8

_publishing = threading.Lock()
# Classes that are not published with others, and why.
_missing: dict[str, str] = {}
# Sources -> the loader of classes that could not be published, and why it has not all of them.
_unpublished: dict[tuple[str, ...], tuple[Any, dict[str, str]]] = {}


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
    loader, missing = load_all(jvm, [name])
    if name in missing:
        raise Py4JError(missing[name])
    return loader.loadClass(name)


def load_all(jvm: Any, names: Sequence[str]) -> tuple[Any, Mapping[str, str]]:
    """Return a class loader of some of our classes, published together if that is possible.

    Args:
        jvm: the session's view of its JVM.
        names: of the classes, with their packages; each may use those before it. They are there if the last
            one is, which compiles with every release.

    Returns:
        The loader, and why it does not have others of the classes.

    Raises:
        Py4JError: they cannot be stored.
    """
    with _publishing:
        loader = _context_loader(jvm)
        if loader.getResource(names[-1].replace(".", "/") + ".class") is not None:
            return loader, _missing
        texts = {name: source(name) for name in names}
        taking = open_loader(jvm)
        if taking is None:
            # Py4J tells classes by their names, so there must not be two of one name.
            key = tuple(texts.values())
            if key not in _unpublished:
                _unpublished[key] = _compiled(jvm, texts, loader)
            return _unpublished[key]
        taking.addURL(_archive(jvm, texts))
        return taking, _missing


def source(name: str) -> str:
    """Return the text of the source of a top-level class, given by its name with its package."""
    return (FOLDER / f"{name.replace('.', '/')}.java").read_text()


def first_line(error: Exception) -> str:
    """Return what went wrong, without where in the JVM it did."""
    thrown = getattr(error, "java_exception", None)
    lines = str(error if thrown is None else thrown.toString()).splitlines()
    return lines[0] if lines else type(error).__name__


def cache_folder(jvm: Any) -> Path:
    """Return a folder that only this user can write, for classes compiled with this release of Spark.

    It lasts as long as the process where the user has no cache folder of that kind.
    """
    release = str(java_class(jvm, "org.apache.spark.SparkContext").getOrCreate().version())
    return user_cache("java", release)


def open_loader(jvm: Any) -> Any | None:
    """Return the class loader that takes more classes, of those that Spark asks; None if there is none."""
    kind = java_class(jvm, "java.lang.Class").forName(_OPEN_LOADER)
    loader = _context_loader(jvm)
    while loader is not None and not kind.isInstance(loader):
        loader = loader.getParent()
    return loader


def _compile_text(jvm: Any, text: str, loader: Any) -> Any:
    """Return the compiler after its work; classes of others are found by a loader."""
    compiler = java_class(jvm, "org.codehaus.janino.SimpleCompiler")()
    compiler.setParentClassLoader(loader)
    # Without these, static methods of interfaces cannot be called.
    compiler.setSourceVersion(_JAVA)
    compiler.setTargetVersion(_JAVA)
    compiler.cook(text)
    return compiler


def _compiled(jvm: Any, texts: Mapping[str, str], loader: Any) -> tuple[Any, dict[str, str]]:
    """Return a loader of classes that are not published, and why it has not all of them."""
    missing = {}
    for name, text in texts.items():
        try:
            loader = _compile_text(jvm, text, loader).getClassLoader()
        except Py4JError as error:
            missing[name] = first_line(error)
    return loader, missing


def _archive(jvm: Any, texts: Mapping[str, str]) -> Any:
    """Return the URL of an archive with the byte code of classes, which are compiled if they were not kept.

    An archive that lacks some is kept for this process only, and `_missing` says why.
    """
    content = hashlib.sha256("\0".join(texts.values()).encode()).hexdigest()[:16]
    name = f"{list(texts)[-1]}-{content}.jar"
    file = cache_folder(jvm) / name
    if not file.exists():
        archive = io.BytesIO()
        loader = _context_loader(jvm)
        with zipfile.ZipFile(archive, "w") as entries:
            for one, text in texts.items():
                try:
                    compiler = _compile_text(jvm, text, loader)
                except Py4JError as error:
                    _missing[one] = first_line(error)
                    file = process_folder() / name
                    continue
                codes, loader = compiler.getBytecodes(), compiler.getClassLoader()
                for inner in codes.keySet():
                    entries.writestr(inner.replace(".", "/") + ".class", bytes(codes.get(inner)))
        # Another process may do the same at the same time: the file comes into view whole.
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(archive.getvalue())
        fresh.replace(file)
    return java_class(jvm, "java.io.File")(str(file)).toURI().toURL()


def _context_loader(jvm: Any) -> Any:
    return java_class(jvm, "java.lang.Thread").currentThread().getContextClassLoader()
