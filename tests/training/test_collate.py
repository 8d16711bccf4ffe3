"""Batches of `LanceIterable` in a DataLoader, with as much of PyTorch as the dataset uses."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import OptionError

NAME = "spark_lance.training.torch"
MODULES = (
    "torch",
    "torch.distributed",
    "torch.utils",
    "torch.utils.data",
    "torch.utils.data._utils",
    "torch.utils.data._utils.collate",
)


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with stand-ins for PyTorch's classes, and for its table of functions that make batches."""
    for name in MODULES:
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, module)
    torch: Any = sys.modules["torch"]
    torch.distributed.is_available = lambda: False
    torch.utils.data.IterableDataset = torch.utils.data.Dataset = object
    torch.utils.data.get_worker_info = lambda: None
    torch.utils.data._utils.collate.default_collate_fn_map = {}
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield importlib.import_module(NAME)
    sys.modules.pop(NAME, None)


def collate(items: list[Any]) -> Any:
    """Choose the function for items as PyTorch's default_collate does: first by their exact type."""
    functions = sys.modules[MODULES[-1]].default_collate_fn_map
    kind = type(items[0])
    if kind in functions:
        return functions[kind](items, collate_fn_map=functions)
    return {name: [item[name] for item in items] for name in items[0]}


def test_batches_of_batches_are_refused(training: Any, tmp_path: Path) -> None:
    spark_lance.write_dataset(pa.table({"text": [f"t{n}" for n in range(40)]}), tmp_path)
    items = list(training.LanceIterable(str(tmp_path), batch_size=16))
    assert [len(item["text"]) for item in items] == [16, 16, 8]
    with pytest.raises(OptionError, match="give its DataLoader batch_size=None"):
        collate(items[:2])


def test_rows_of_a_map_are_put_together(training: Any, tmp_path: Path) -> None:
    spark_lance.write_dataset(pa.table({"text": ["a", "b"]}), tmp_path)
    rows = training.LanceMap(str(tmp_path))
    assert collate([rows[0], rows[1]]) == {"text": ["a", "b"]}
