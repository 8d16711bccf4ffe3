"""What a worker process loads to write the rows of a task."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyspark.sql.types as st

import spark_lance
from spark_lance.spark.options.options import write_options
from spark_lance.spark.sink.write import LanceWriter
from spark_lance.spark.worker.write import pickled_write
from tests.spark.sink.test_commit import sent

TASK = """
import pickle, sys
import pyarrow as pa
function, _ = pickle.load(open(sys.argv[1], "rb"))
rows = [pa.RecordBatch.from_pydict({"n": [1, 2, 3], "s": ["a", None, "c"]})]
(answer,) = function(iter(rows))
sys.stdout.buffer.write(answer.column(0)[0].as_py() + b"\\n---\\n" + " ".join(sys.modules).encode())
"""


def test_a_task_loads_what_writes_its_rows_and_nothing_of_planning(tmp_path: Path) -> None:
    schema = st.StructType([st.StructField("n", st.LongType()), st.StructField("s", st.StringType())])
    writer = LanceWriter(write_options({"path": str(tmp_path / "t")}, False), schema, False)
    (tmp_path / "function").write_bytes(pickled_write(writer.task_rows()))
    command = [sys.executable, "-c", TASK, str(tmp_path / "function")]
    message, _, modules = subprocess.run(command, capture_output=True, check=True).stdout.partition(
        b"\n---\n"
    )
    ours = [name for name in modules.decode().split() if name.startswith("spark_lance.")]
    unneeded = ("table.commits", "table.inserts", "table.versions", "index", "spark.options", "spark.driver")
    assert "spark_lance.file.v2_1.write.field_writer" in ours
    assert not [name for name in ours if name.startswith(tuple(f"spark_lance.{part}" for part in unneeded))]
    sent(writer).commit([pickle.loads(message)])
    assert spark_lance.dataset(str(tmp_path / "t")).to_table().to_pydict() == {
        "n": [1, 2, 3],
        "s": ["a", None, "c"],
    }


def test_rows_are_written_as_the_writer_itself_writes_them(tmp_path: Path) -> None:
    schema = st.StructType([st.StructField("n", st.LongType())])
    batch = pa.RecordBatch.from_pydict({"n": [5, 6]})
    for place in ("own", "tasks"):
        writer = LanceWriter(write_options({"path": str(tmp_path / place)}, False), schema, False)
        rows = writer if place == "own" else writer.task_rows()
        writer.commit([rows.write(iter([batch]))])
        assert spark_lance.dataset(str(tmp_path / place)).to_table().to_pydict() == {"n": [5, 6]}
