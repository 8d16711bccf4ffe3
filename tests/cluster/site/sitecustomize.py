"""Python runs this when it starts, if this folder is in PYTHONPATH: see `tests.cluster.stops`."""

from __future__ import annotations

import sys

# The daemon from which Spark forks the workers that commit writes.
if "pyspark.sql.worker.commit_data_source_write" in sys.orig_argv:
    from tests.cluster.stops import install

    install()
