"""Tables as datasets of PyTorch."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import OptionError
from tests.conftest import ROOT

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


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


def test_tensors_share_memory_with_arrow(ds: LanceDataset) -> None:
    from spark_lance.training.torch import as_tensors

    table = ds.to_table(["n", "v"]).combine_chunks()
    tensors = as_tensors(table)
    assert tensors["n"].data_ptr() == table["n"].chunk(0).buffers()[1].address
    assert tensors["v"].data_ptr() == table["v"].chunk(0).flatten().buffers()[1].address
    part = table.slice(100, 50)
    assert as_tensors(part)["v"].data_ptr() == tensors["v"][100].data_ptr()
    assert as_tensors(part)["v"].tolist() == tensors["v"][100:150].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_and_ranks_share_the_rows(workers: int, ds: LanceDataset) -> None:
    from spark_lance.training.torch import LanceIterable

    assert ds.to_table().num_rows == 500  # this process has used threads when workers are forked
    epochs = []
    for epoch in range(2):
        seen = []
        for rank in range(2):
            rows = LanceIterable(ds, 20, columns=["n"], shuffle=True, rank=rank, world_size=2, piece_rows=25)
            rows.set_epoch(epoch)
            loader = torch.utils.data.DataLoader(rows, batch_size=None, num_workers=workers)
            seen += [n for batch in loader for n in batch["n"].tolist()]
        assert sorted(seen) == list(range(500))
        epochs.append(seen)
    assert epochs[0] != epochs[1]


def test_ranks_are_those_of_torch_distributed(ds: LanceDataset, tmp_path: Path) -> None:
    from spark_lance.training.torch import LanceIterable

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1
    )
    try:
        rows = LanceIterable(ds, 100, columns=["n"])
        assert [n for batch in rows for n in batch["n"].tolist()] == list(range(500))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("workers", [0, 2])
def test_blobs_come_decoded(workers: int, tmp_path: Path) -> None:
    from spark_lance.training.torch import LanceIterable, LanceMap

    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = [bytes([i, i + 1]) * (20 + i) for i in range(60)]
    rows = pa.table(
        [pa.array(range(60)), pa.array(data, pa.large_binary())], pa.schema([("n", pa.int64()), field])
    )
    for version in ("2.1", "2.2"):
        path = str(tmp_path / version)
        table = spark_lance.write_dataset(rows, path, max_rows_per_file=25, data_storage_version=version)
        result = LanceIterable(table, 16, shuffle=True, piece_rows=10, decode={"b": first_bytes})
        loader = torch.utils.data.DataLoader(result, batch_size=None, num_workers=workers)
        pairs = [pair for part in loader for pair in zip(part["n"].tolist(), part["b"].tolist(), strict=True)]
        assert sorted(pairs) == [(n, n) for n in range(60)]
        by_number = LanceMap(table, columns=["n", "b"], decode={"b": first_bytes})
        loader = torch.utils.data.DataLoader(by_number, batch_size=7, num_workers=workers)
        assert [n for part in loader for n in part["b"].tolist()] == list(range(60))


def first_bytes(values: list[bytes]) -> object:
    return torch.tensor([value[0] for value in values])


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_goes_on_in_a_loader(workers: int, ds: LanceDataset) -> None:
    from spark_lance.training.torch import LanceIterable

    def loader(state: dict[str, int] | None) -> object:
        rows = LanceIterable(ds, 32, columns=["n"], shuffle=True, seed=2, piece_rows=30, buffer_pieces=3)
        if state is not None:
            rows.load_state_dict(state)
        return torch.utils.data.DataLoader(rows, batch_size=None, num_workers=workers)

    def numbers(batches: object) -> list[list[int]]:
        return [batch["n"].tolist() for batch in batches]  # type: ignore[attr-defined]

    whole = numbers(loader(None))
    rows = LanceIterable(ds, 32, columns=["n"], shuffle=True, seed=2, piece_rows=30, buffer_pieces=3)
    given = iter(rows)
    for _ in range(6):
        next(given)
    assert numbers(loader(rows.state_dict())) == whole[6:]


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

    result = spark_lance.write_dataset({"x": [1.0, None]}, str(tmp_path / "t"))
    with pytest.raises(OptionError, match="'x' has nulls"):
        next(iter(LanceIterable(result)))
    remaining = LanceIterable(result, filter="x is not null")
    assert next(iter(remaining))["x"].tolist() == [1.0]
    with pytest.raises(OptionError, match="together"):
        LanceIterable(result, rank=1)


def test_program_of_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    match = re.search(r"```py\n(.*?)```\s*```output\n(.*?)```", page, re.DOTALL)
    assert match is not None
    exec(compile(match[1].replace("/tmp/lance-readme", str(tmp_path)), "training.md", "exec"), {})
    assert capsys.readouterr().out == match[2]
