"""Preparation of Spark's Python worker processes, which serve many queries one after the other."""

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
# How many modules there were when they were last kept from garbage collection.
_FROZEN = [0]


def keep_worker_ready() -> None:
    """Let this process, if it is one of Spark's workers, begin and end its pieces of work quickly.

    After each one, be it as small as planning a count, workers collect garbage, and look at all objects of
    all modules for that: some 30 ms of processor time. So what has been loaded is kept out of it.

    Called when work begins: what was garbage has been collected by then.
    """
    if _is_worker():
        if len(sys.modules) > _FROZEN[0]:
            gc.freeze()
            _FROZEN[0] = len(sys.modules)
        forget_archives()


def forget_archives() -> None:
    """Make the next piece of work start sooner, if this process is one of Spark's workers.

    Before each piece, releases of Spark before 4.3 make Python search again for importable modules. Up to
    Python 3.12 that reads the directories of pyspark.zip and of one of Spark's jars, once for each package
    that was looked for there: 100 ms. So Python forgets the objects that do so, and creates others from the
    directories it has when something is imported. Archives that were added after the start of the process may
    change, so they are left alone.

    Called when work ends, before the last row is gone: it takes microseconds.
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


# Loads the pickled `data` in a worker, or says in one line, without a traceback, that it cannot.
_LOADER = """
__import__("pickle").loads(data) if __import__("importlib.util").util.find_spec("spark_lance") else (
    __import__("os").environ.update(
        {"SPARK_HIDE_TRACEBACK": "1"} if "SPARK_SIMPLIFIED_TRACEBACK" in __import__("os").environ else {}
    ),
    (n for n in ()).throw(ImportError(text % (__import__("sys").executable, __import__("platform").node()))),
)
"""


class _Guarded:
    """Pickles as a call of built-in functions, so that workers without this package can load it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        text = "the Python of Spark's workers, %s on host %s, has no spark_lance: install it there"
        return eval, (_LOADER.strip(), {"data": self._data, "text": text})


def pickled_function(function: Any, answer: Any) -> bytes:
    """Return a function for Spark's workers, pickled together with the type of its rows.

    Args:
        function: belongs to a module of this package.
        answer: the type of the rows that it yields.
    """
    data = pickle.dumps((function, answer), protocol=pickle.HIGHEST_PROTOCOL)
    return pickle.dumps(_Guarded(data), protocol=pickle.HIGHEST_PROTOCOL)
