"""PyTorch datasets of tables. Requires the package torch.

    rows = LanceIterable(spark_lance.dataset(uri), batch_size=256, columns=["image", "label"], shuffle=True)
    for batch in DataLoader(rows, batch_size=None, num_workers=2):
        batch["image"]                     # (256, 64) float32

Numbers and vectors become tensors that share memory with Arrow. Strings and bytes become lists, unless a user
function decodes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import torch
import torch.distributed
import torch.utils.data
from torch.utils.data._utils.collate import default_collate_fn_map

from spark_lance.datasets.dataset import LanceDataset, dataset
from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.training.batches import Batches, Position, rows_at

Decoders = Mapping[str, Callable[[list[Any]], Any]]


def as_tensors(table: pa.Table, decode: Decoders | None = None) -> dict[str, Any]:
    """Return columns by name: numbers and vectors as tensors, others as lists.

    Args:
        table: the rows.
        decode: functions by column, each from a list of values to the decoded values.

    Raises:
        OptionError: a column of numbers has nulls.
    """
    functions = decode or {}
    result: dict[str, Any] = {}
    for name in table.column_names:
        if name in functions:
            result[name] = functions[name](table[name].to_pylist())
        else:
            result[name] = as_tensor(table[name], name)
    return result


def as_tensor(column: pa.ChunkedArray, name: str = "") -> Any:
    """Return a numeric column as a tensor, without a copy if it is one chunk; other columns as lists.

    Fixed-size lists of numbers become matrices. Fixed-shape tensors keep their shape.

    Raises:
        OptionError: the column has nulls.
    """
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    shape: tuple[int, ...] = (len(array),)
    if isinstance(array, pa.FixedShapeTensorArray):
        shape = (len(array), *array.type.shape)
        array = array.storage
    elif pa.types.is_fixed_size_list(array.type):
        shape = (len(array), array.type.list_size)
    kind = array.type.value_type if pa.types.is_fixed_size_list(array.type) else array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return array.to_pylist()
    if array.null_count:
        raise OptionError(f"column {name!r} has nulls, which a tensor cannot hold: filter them, or decode it")
    values = array.flatten() if pa.types.is_fixed_size_list(array.type) else array
    if values.null_count:
        raise OptionError(f"vectors of column {name!r} have nulls, which a tensor cannot hold")
    if pa.types.is_boolean(kind) or not len(values):
        return torch.tensor(values.to_numpy(zero_copy_only=False).copy()).reshape(shape)
    return torch.from_dlpack(values).reshape(shape)


class TensorBatch(dict[str, Any]):
    """The columns of a batch by name. A DataLoader that collates several of them raises an error."""


def _refuse_batches(*_: Any, **__: Any) -> NoReturn:
    """Raise an error instead of collating batches.

    Raises:
        OptionError: always.
    """
    raise OptionError(
        "LanceIterable makes the batches itself: give its DataLoader batch_size=None, and the number of rows "
        "to LanceIterable(batch_size=...)"
    )


# PyTorch looks up the collate function of a type here.
default_collate_fn_map[TensorBatch] = _refuse_batches


class LanceIterable(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """The rows of a version in batches, split across the workers of all ranks.

    Use it in a DataLoader with batch_size=None, because it makes the batches; any other value is an error.

    Args:
        table: a LanceDataset, or the URI of a table.
        batch_size: rows per batch.
        columns: names of top-level columns; all by default. Blobs are read as bytes.
        filter: condition that rows must match.
        shuffle: whether each epoch has another order, of pieces of the table and of rows in a buffer.
        seed: seed of the order.
        decode: functions by column, each from a list of values (such as image bytes) to the decoded values.
        rank, world_size: this process and the number of processes; by default from torch.distributed.
        piece_rows, buffer_pieces, drop_last: see `Batches`.
    """

    def __init__(
        self,
        table: LanceDataset | str | os.PathLike[str],
        batch_size: int = 256,
        *,
        columns: Sequence[str] | None = None,
        filter: Any = None,
        shuffle: bool = False,
        seed: int = 0,
        decode: Decoders | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        piece_rows: int = 2048,
        buffer_pieces: int = 16,
        drop_last: bool = False,
    ) -> None:
        super().__init__()
        self.batches = Batches(
            _opened(table), batch_size, columns, filter, shuffle, seed, piece_rows, buffer_pieces, drop_last
        )
        self._decode = decode
        self._rank, self._world_size = _rank(rank, world_size)
        self._epoch = 0
        self._position = Position()

    def set_epoch(self, epoch: int) -> None:
        """Start another epoch, with its own order."""
        self._epoch, self._position = epoch, Position()

    def state_dict(self) -> dict[str, int]:
        """Return the position of this process, for `load_state_dict`.

        With several workers, each worker has its own state, which the loader must request from it.
        """
        place = self._position
        return {"epoch": self._epoch, "buffer": place.buffer, "rows": place.rows}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue at a position from `state_dict`."""
        self._epoch, self._position = state["epoch"], Position(state["buffer"], state["rows"])

    def __iter__(self) -> Iterator[TensorBatch]:
        worker = torch.utils.data.get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        shard, shards = self._rank * workers + number, self._world_size * workers
        for table, place in self.batches.epoch(self._epoch, shard, shards, self._position):
            self._position = place
            yield TensorBatch(as_tensors(table, self._decode))
        self._epoch, self._position = self._epoch + 1, Position()


class LanceMap(torch.utils.data.Dataset):  # type: ignore[misc]
    """The rows of a version by number, for PyTorch samplers. A batch is one read.

    Args:
        table: a LanceDataset, or the URI of a table.
        columns: names of top-level columns; all by default. Blobs are read as bytes.
        decode: functions by column, each from a list of values to a sequence of the same length.
    """

    def __init__(
        self,
        table: LanceDataset | str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        decode: Decoders | None = None,
    ) -> None:
        super().__init__()
        self._dataset = _opened(table)
        self._columns, self._decode = columns, decode
        self._rows = self._dataset.count_rows()

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Return one row."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return several rows."""
        columns = as_tensors(rows_at(self._dataset, rows, self._columns), self._decode)
        return [{name: values[i] for name, values in columns.items()} for i in range(len(rows))]


def _opened(table: LanceDataset | str | os.PathLike[str]) -> LanceDataset:
    if isinstance(table, LanceDataset):
        return table
    if isinstance(table, str | os.PathLike):
        return dataset(table)
    raise OptionTypeError(f"a table is a LanceDataset or its URI, not {type(table).__name__}")


def _rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise OptionError("give rank and world_size together")
    if rank is not None and world_size is not None:
        if not 0 <= rank < world_size:
            raise OptionError(f"rank {rank} is not below world_size {world_size}")
        return rank, world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
