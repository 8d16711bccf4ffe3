"""Speeds up Spark's Python worker processes, which serve many queries one after the other."""

from __future__ import annotations

import gc
import os
import pickle
import sys
from functools import cache
from typing import Any
from zipimport import zipimporter

# The modules of the processes that Spark forks its workers from.
_DAEMONS = ("pyspark.daemon", "spark_lance.spark.daemon")
# The number of modules that were loaded at the last `gc.freeze`.
_frozen_modules = [0]


def keep_worker_ready() -> None:
    """Speed up the garbage collection of this process, if it is one of Spark's workers.

    After each piece of work, even one as small as planning a count, workers collect garbage. That scans all
    objects of all modules and takes some 30 ms of processor time. So this excludes loaded modules from it.

    Called when work begins, because all garbage has been collected by then.
    """
    if _is_worker():
        if len(sys.modules) > _frozen_modules[0]:
            gc.freeze()
            _frozen_modules[0] = len(sys.modules)
        forget_archives()


def forget_archives() -> None:
    """Speed up the start of the next piece of work, if this process is one of Spark's workers.

    Before each piece of work, releases of Spark before 4.3 invalidate Python's import caches. Up to Python
    3.12 that reads the directories of pyspark.zip and of one of Spark's jars, once for each package that was
    searched there: 100 ms. So this removes the importers that would read them. Python creates new ones from
    its cached directories at the next import. Archives that were added after the start of the process may
    change, so their importers stay.

    Called when work ends, before the last row is sent. It takes microseconds.
    """
    if not _is_worker():
        return
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter) and importer.archive in paths:
            sys.path_importer_cache.pop(path, None)


@cache
def _is_worker() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name in _DAEMONS


# Loads the pickled `data` in a worker, or raises an error of one line, without a traceback.
_LOADER = """
__import__("pickle").loads(data) if __import__("importlib.util").util.find_spec("spark_lance") else (
    __import__("os").environ.update(
        {"SPARK_HIDE_TRACEBACK": "1"} if "SPARK_SIMPLIFIED_TRACEBACK" in __import__("os").environ else {}
    ),
    (n for n in ()).throw(ImportError(text % (__import__("sys").executable, __import__("platform").node()))),
)
"""


class _CheckedPickle:
    """Pickles as a call of built-in functions, so that workers without this package can raise an error."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        text = "the Python of Spark's workers, %s on host %s, has no spark_lance: install it there"
        return eval, (_LOADER.strip(), {"data": self._data, "text": text})


def pickled_function(function: Any, answer: Any) -> bytes:
    """Pickle a function for Spark's workers together with the type of its rows.

    Args:
        function: a function of a module of this package.
        answer: the type of the rows that it yields.
    """
    data = pickle.dumps((function, answer), protocol=pickle.HIGHEST_PROTOCOL)
    return pickle.dumps(_CheckedPickle(data), protocol=pickle.HIGHEST_PROTOCOL)
