"""Tables as datasets of PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import OptionError

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> LanceDataset:
    path = str(tmp_path_factory.mktemp("torch") / "t")
    vectors = np.arange(4000, dtype=np.float32)
    rows = pa.table(
        {
            "n": np.arange(500),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 8),
            "ok": np.arange(500) % 2 == 0,
            "s": [f"row {i}" for i in range(500)],
            "b": [bytes([i % 256]) for i in range(500)],
        }
    )
    return spark_lance.write_dataset(rows, path, max_rows_per_file=130)


def test_batches_are_tensors(ds: LanceDataset) -> None:
    from spark_lance.training.torch import LanceIterable

    rows = LanceIterable(ds, 64, decode={"b": lambda values: torch.tensor([value[0] for value in values])})
    first = next(iter(rows))
    assert first["n"].tolist() == list(range(64))
    assert first["v"].shape == (64, 8)
    assert first["v"].dtype == torch.float32
    assert first["v"][3].tolist() == list(range(24, 32))
    assert first["ok"].dtype == torch.bool
    assert first["s"][:2] == ["row 0", "row 1"]
    assert first["b"].tolist() == list(range(64))


def test_workers_and_ranks_share_the_rows(ds: LanceDataset) -> None:
    from spark_lance.training.torch import LanceIterable

    seen = []
    for rank in range(2):
        rows = LanceIterable(ds, 20, columns=["n"], shuffle=True, rank=rank, world_size=2, piece_rows=25)
        loader = torch.utils.data.DataLoader(rows, batch_size=None, num_workers=2)
        seen += [n for batch in loader for n in batch["n"].tolist()]
    assert sorted(seen) == list(range(500))


def test_a_state_is_where_to_go_on(ds: LanceDataset) -> None:
    from spark_lance.training.torch import LanceIterable

    def make() -> LanceIterable:
        return LanceIterable(ds, 32, columns=["n"], shuffle=True, seed=2, piece_rows=30, buffer_pieces=3)

    rows = make()
    rows.set_epoch(4)
    given = iter(rows)
    for _ in range(5):
        next(given)
    other = make()
    other.load_state_dict(rows.state_dict())
    assert [b["n"].tolist() for b in other] == [b["n"].tolist() for b in given]
    assert other.state_dict() == {"epoch": 5, "buffer": 0, "rows": 0}


def test_rows_by_number(ds: LanceDataset) -> None:
    from spark_lance.training.torch import LanceMap

    rows = LanceMap(ds.uri, columns=["v", "n"])
    assert len(rows) == 500
    assert rows[7]["n"] == 7
    loader = torch.utils.data.DataLoader(rows, batch_size=50, shuffle=True)
    batches = list(loader)
    assert batches[0]["v"].shape == (50, 8)
    assert sorted(n for batch in batches for n in batch["n"].tolist()) == list(range(500))


def test_nulls_are_refused(tmp_path: Path) -> None:
    from spark_lance.training.torch import LanceIterable

    made = spark_lance.write_dataset({"x": [1.0, None]}, str(tmp_path / "t"))
    with pytest.raises(OptionError, match="'x' has nulls"):
        next(iter(LanceIterable(made)))
    kept = LanceIterable(made, filter="x is not null")
    assert next(iter(kept))["x"].tolist() == [1.0]
    with pytest.raises(OptionError, match="together"):
        LanceIterable(made, rank=1)
