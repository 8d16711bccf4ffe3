"""Python imports this when it starts: Spark's daemons load what their workers need, as ours does.

Hundreds of workers are forked in a run of the tests, and each would load packages for most of a second of
processor time. The daemon that a session may choose forks the workers of tasks alone; those that plan reads
and writes have Spark's own.
"""

import contextlib
import sys

if "pyspark.daemon" in sys.orig_argv:
    # A Python that lacks a package tells so when a worker asks for it.
    with contextlib.suppress(ImportError):
        from spark_lance.spark.daemon import preload

        preload()
    # It is run as the program after this.
    sys.modules.pop("pyspark.daemon", None)
