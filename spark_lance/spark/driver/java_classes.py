"""Compiles and loads this package's Java classes in the driver's JVM, with the compiler that Spark contains.

A class is *published* if Spark's class loader accepts more classes, as in a driver that spark-submit or
Python has started. Then all threads and sessions find the class by name, and it is compiled once per JVM.
The user's cache folder stores compiled classes for the next JVM, by content and release of Spark:

    <cache>/spark-lance/java/<release>/<class>-<hash of the sources>.jar

Each attribute access on PySpark's view of the JVM is a call to the JVM, which searches all archives in case
the attribute is a package. So this module uses full class names, and `LanceStart` does in one call all other
work in the JVM when a session starts.
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

# The root of the Java sources: folders are packages, and each file has the name of its class.
FOLDER = Path(__file__).parent.parent / "jvm"
# Spark's class loader with a public addURL.
_OPEN_LOADER = "org.apache.spark.util.MutableURLClassLoader"
_JAVA = 8

_publishing = threading.Lock()
# Class that could not be published -> the reason.
_missing: dict[str, str] = {}
# Sources -> a class loader for this process only, and the reasons for classes that it lacks.
_unpublished: dict[tuple[str, ...], tuple[Any, dict[str, str]]] = {}


def can_publish(jvm: Any) -> bool:
    """Return whether classes can be published to all threads and sessions of this driver."""
    return open_loader(jvm) is not None


def load(jvm: Any, name: str) -> Any:
    """Return the class object of one of our classes, published if that is possible.

    Args:
        jvm: the session's view of its JVM.
        name: full name of the class.

    Raises:
        Py4JError: the class does not compile with this release of Spark, or cannot be stored.
    """
    loader, missing = load_all(jvm, [name])
    if name in missing:
        raise Py4JError(missing[name])
    return loader.loadClass(name)


def load_all(jvm: Any, names: Sequence[str]) -> tuple[Any, Mapping[str, str]]:
    """Return a class loader of some of our classes, published together if that is possible.

    Args:
        jvm: the session's view of its JVM.
        names: full names of the classes. Each may use the classes before it. The last one must compile with
            every release: if it is loaded, the others count as loaded.

    Returns:
        The loader, and the reason for each class that it lacks.

    Raises:
        Py4JError: the classes cannot be stored.
    """
    with _publishing:
        loader = _context_loader(jvm)
        if loader.getResource(names[-1].replace(".", "/") + ".class") is not None:
            return loader, _missing
        texts = {name: source(name) for name in names}
        publisher = open_loader(jvm)
        if publisher is None:
            # Py4J identifies classes by name, so a name must not have two classes.
            key = tuple(texts.values())
            if key not in _unpublished:
                _unpublished[key] = _compile_unpublished(jvm, texts, loader)
            return _unpublished[key]
        publisher.addURL(_archive_url(jvm, texts))
        return publisher, _missing


def source(name: str) -> str:
    """Return the source text of a top-level class, given its full name."""
    return (FOLDER / f"{name.replace('.', '/')}.java").read_text()


def first_line(error: Exception) -> str:
    """Return the first line of an error message, without the JVM's stack trace."""
    thrown = getattr(error, "java_exception", None)
    lines = str(error if thrown is None else thrown.toString()).splitlines()
    return lines[0] if lines else type(error).__name__


def cache_folder(jvm: Any) -> Path:
    """Return the folder for classes compiled with this release of Spark. Only this user can write to it.

    If the user has no such cache folder, the folder is deleted when the process ends.
    """
    release = str(java_class(jvm, "org.apache.spark.SparkContext").getOrCreate().version())
    return user_cache("java", release)


def open_loader(jvm: Any) -> Any | None:
    """Return the class loader of Spark that accepts more classes; None if there is none."""
    kind = java_class(jvm, "java.lang.Class").forName(_OPEN_LOADER)
    loader = _context_loader(jvm)
    while loader is not None and not kind.isInstance(loader):
        loader = loader.getParent()
    return loader


def _compile_text(jvm: Any, text: str, loader: Any) -> Any:
    """Compile a source text and return the compiler. `loader` finds the classes that the text uses."""
    compiler = java_class(jvm, "org.codehaus.janino.SimpleCompiler")()
    compiler.setParentClassLoader(loader)
    # Without these, static methods of interfaces cannot be called.
    compiler.setSourceVersion(_JAVA)
    compiler.setTargetVersion(_JAVA)
    compiler.cook(text)
    return compiler


def _compile_unpublished(jvm: Any, texts: Mapping[str, str], loader: Any) -> tuple[Any, dict[str, str]]:
    """Return a loader of classes that are not published, and the reason for each class that it lacks."""
    missing = {}
    for name, text in texts.items():
        try:
            loader = _compile_text(jvm, text, loader).getClassLoader()
        except Py4JError as error:
            missing[name] = first_line(error)
    return loader, missing


def _archive_url(jvm: Any, texts: Mapping[str, str]) -> Any:
    """Return the URL of an archive with the byte code of classes, and compile them if it does not exist.

    If some classes do not compile, the archive is for this process only, and `_missing` has the reasons.
    """
    content = hashlib.sha256("\0".join(texts.values()).encode()).hexdigest()[:16]
    name = f"{list(texts)[-1]}-{content}.jar"
    file = cache_folder(jvm) / name
    if not file.exists():
        archive = io.BytesIO()
        loader = _context_loader(jvm)
        with zipfile.ZipFile(archive, "w") as entries:
            for class_name, text in texts.items():
                try:
                    compiler = _compile_text(jvm, text, loader)
                except Py4JError as error:
                    _missing[class_name] = first_line(error)
                    file = process_folder() / name
                    continue
                codes, loader = compiler.getBytecodes(), compiler.getClassLoader()
                for inner in codes.keySet():
                    entries.writestr(inner.replace(".", "/") + ".class", bytes(codes.get(inner)))
        # Renamed when complete, because another process may write the same file at the same time.
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(archive.getvalue())
        temporary.replace(file)
    return java_class(jvm, "java.io.File")(str(file)).toURI().toURL()


def _context_loader(jvm: Any) -> Any:
    return java_class(jvm, "java.lang.Thread").currentThread().getContextClassLoader()
