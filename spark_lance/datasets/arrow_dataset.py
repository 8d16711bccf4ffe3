"""A table as a `pyarrow.dataset.Dataset`, for engines that push columns and filters down into one.

The base class is a wrapper of a C++ object, which does not exist here. So all of its methods that are not
defined below are refused, because they would use that object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.dataset

from spark_lance.datasets.scanner import LanceScanner
from spark_lance.errors import UnsupportedFormatError

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset


class ArrowDataset(pyarrow.dataset.Dataset):  # type: ignore[misc]
    """One version of a table in the shape of pyarrow's datasets. Made by `LanceDataset.to_pyarrow`."""

    def __init__(self, table: LanceDataset) -> None:
        self.table = table

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.table,)

    @property
    def schema(self) -> pa.Schema:
        """The schema."""
        return self.table.schema

    @property
    def partition_expression(self) -> NoReturn:
        """Not there: partitions of a table are no expression of pyarrow."""
        raise UnsupportedFormatError(
            "the partitions of a Lance table are no expression of pyarrow: filter by their columns"
        )

    def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> LanceScanner:
        """Describe a read; see `LanceDataset.scanner`."""
        return self.table.scanner(columns, filter, **options)

    def to_table(self, columns: Any = None, filter: Any = None, **options: Any) -> pa.Table:
        """Read rows into memory."""
        return self.scanner(columns, filter, **options).to_table()

    def to_batches(self, columns: Any = None, filter: Any = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """Stream rows."""
        return self.scanner(columns, filter, **options).to_batches()

    def head(self, num_rows: int, columns: Any = None, filter: Any = None, **options: Any) -> pa.Table:
        """Read the first rows."""
        return self.scanner(columns, filter, **options).head(num_rows)

    def take(self, indices: Any, columns: Any = None, filter: Any = None, **options: Any) -> pa.Table:
        """Return rows by position."""
        if filter is None and not options:
            return self.table.take(indices, columns)
        return self.scanner(columns, filter, **options).take(indices)

    def count_rows(self, filter: Any = None, **options: Any) -> int:
        """Count rows."""
        return self.table.count_rows(filter, **options)

    def get_fragments(self, *_: Any, **__: Any) -> NoReturn:
        """Not there: `LanceDataset.get_fragments` gives them."""
        raise UnsupportedFormatError("ask the LanceDataset for its fragments")

    def join(self, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        raise _refused("join")

    def join_asof(self, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        raise _refused("join_asof")

    def filter(self, *_: Any, **__: Any) -> NoReturn:
        """Not there: `scanner` and `to_table` take filters."""
        raise _refused("filter")

    def sort_by(self, *_: Any, **__: Any) -> NoReturn:
        """Not there: `scanner` and `to_table` take order_by."""
        raise _refused("sort_by")

    def replace_schema(self, *_: Any, **__: Any) -> NoReturn:
        """Not there: a table changes by its own methods."""
        raise _refused("replace_schema")

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export all rows by Arrow's C stream interface."""
        return self.table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"ArrowDataset({self.table!r})"


def _refused(name: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(f"{name} is not there for Lance tables: read rows with to_table() first")
