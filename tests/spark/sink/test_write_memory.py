"""A task that writes wide rows holds some pages of them, not the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# 300 MB of vectors in batches of 30 MB, as Spark hands them over.
TASK = """
import resource, sys
import numpy as np, pyarrow as pa, pyspark.sql.types as t
from spark_lance.spark.source import LanceDataSource

schema = t.StructType([t.StructField("v", t.ArrayType(t.FloatType()))])
options = {"path": sys.argv[1], "v.arrow.fixed-size-list.size": "768"}
writer = LanceDataSource(options).writer(schema, False)
numbers = np.random.default_rng(0).random(10_000 * 768, dtype=np.float32)
offsets = pa.array(np.arange(0, 10_001 * 768, 768, dtype=np.int32))

def batch(number):
    lists = pa.ListArray.from_arrays(offsets, pa.array(numbers + number))
    return pa.record_batch([lists], names=["v"])

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

batch(0)
before = peak()
writer.commit([writer.write(batch(number) for number in range(int(sys.argv[2])))])
sys.stdout.write(f"{peak() - before}")
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_task(tmp_path: Path) -> None:
    grown = []
    for batches in (3, 20):
        command = [sys.executable, "-c", TASK, str(tmp_path / str(batches)), str(batches)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        grown.append(int(done.stdout))
    # Megabytes: of 90 and of 600.
    assert grown[1] < grown[0] + 60
    assert grown[1] < 200
