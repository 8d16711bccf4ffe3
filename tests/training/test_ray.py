"""Tables as datasets of Ray Data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import OptionError

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


def test_rows_come_once(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    from spark_lance.training.ray import as_ray

    path = str(tmp_path_factory.mktemp("ray") / "t")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2000, dtype=np.float32)), 4)
    table = spark_lance.write_dataset({"n": range(500), "v": vectors}, path, max_rows_per_file=90)
    rows = as_ray(table, ["n", "v"], "n % 2 = 0", shards=3)
    assert rows.count() == 250
    expected = table.to_table(["n"], "n % 2 = 0")["n"].to_pylist()
    assert sorted(row["n"] for row in rows.take_all()) == expected
    doubled = rows.map_batches(lambda batch: {"m": batch["n"] * 2})
    assert sorted(row["m"] for row in doubled.take_all()) == [2 * n for n in expected]
    with pytest.raises(OptionError, match="shards"):
        as_ray(table, shards=0)
