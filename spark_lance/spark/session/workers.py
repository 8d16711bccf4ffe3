"""What Spark's Python worker processes need, which serve many queries one after the other."""

from __future__ import annotations

import gc
import sys
from functools import cache

__all__ = ["freeze_loaded_modules"]

# What runs in the processes that Spark forks its workers from.
_DAEMONS = ("pyspark.daemon", "spark_lance.spark.daemon")


@cache
def freeze_loaded_modules() -> None:
    """Keep what this process has loaded so far out of garbage collection, if it is one of Spark's workers.

    They collect garbage after every piece of work, be it as small as planning a count, and look at all
    objects of all modules for that: some 30 ms of processor time, several times a query.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name in _DAEMONS:
        gc.collect()
        gc.freeze()
