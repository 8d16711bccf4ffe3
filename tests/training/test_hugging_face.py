"""Tables as datasets of Hugging Face, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import OptionError

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> LanceDataset:
    path = str(tmp_path_factory.mktemp("hugging") / "t")
    rows = pa.table(
        {
            "n": np.arange(300),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(1200, dtype=np.float32)), 4),
            "s": [None if n % 9 == 0 else f"row {n}" for n in range(300)],
            "l": [[n] * (n % 3) for n in range(300)],
        }
    )
    return spark_lance.write_dataset(rows, path, max_rows_per_file=70).delete("n % 10 = 3")


def test_all_rows_and_back(ds: LanceDataset, tmp_path: Path) -> None:
    from spark_lance.training.hugging_face import as_dataset

    rows = as_dataset(ds)
    assert rows[:] == ds.to_table().to_pydict()
    assert rows.features["v"].length == 4
    again = spark_lance.write_dataset(rows, tmp_path / "t")
    assert again.to_table().to_pylist() == ds.to_table().to_pylist()
    assert again.schema.field("v").type == ds.schema.field("v").type
    some = as_dataset(ds, ["s"], "n < 20").filter(lambda row: row["s"] is not None)
    assert some["s"][:3] == ["row 1", "row 2", "row 4"]
    assert len(as_dataset(ds, filter="n < 0")) == 0


@pytest.mark.parametrize("shards", [1, 3])
def test_rows_that_are_streamed(shards: int, ds: LanceDataset, tmp_path: Path) -> None:
    from spark_lance.training.hugging_face import as_iterable

    rows = as_iterable(ds, ["n", "v"], "n >= 100", shards=shards)
    assert rows.num_shards == shards
    result = sorted(rows, key=lambda row: row["n"])
    assert result == ds.to_table(["n", "v"], "n >= 100").to_pylist()
    shuffled = [row["n"] for row in rows.shuffle(seed=1, buffer_size=50)]
    assert sorted(shuffled) == [row["n"] for row in result] != shuffled
    again = spark_lance.write_dataset(rows, tmp_path / "t")
    assert sorted(again.to_table()["n"].to_pylist()) == [row["n"] for row in result]
    with pytest.raises(OptionError, match="shards"):
        as_iterable(ds, shards=0)


def test_workers_of_a_loader_share_the_rows(ds: LanceDataset) -> None:
    from spark_lance.training.hugging_face import as_iterable

    torch = pytest.importorskip("torch")
    rows = as_iterable(ds, ["n"], shards=4)
    loader = torch.utils.data.DataLoader(rows.with_format("torch"), batch_size=25, num_workers=2)
    assert sorted(n for batch in loader for n in batch["n"].tolist()) == ds.to_table()["n"].to_pylist()
