"""A table as a `pyarrow.dataset.Dataset`, for engines that push down columns and filters.

The base class wraps a C++ object, which does not exist here. So all of its methods that would use that object
are overridden below.
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
    """One version of a table as a pyarrow dataset. Get it from `LanceDataset.to_pyarrow`."""

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
        """Not supported: the partitions of a table are not a pyarrow expression."""
        raise UnsupportedFormatError(
            "the partitions of a Lance table are no expression of pyarrow: filter by their columns"
        )

    def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> LanceScanner:
        """Return a scanner; see `LanceDataset.scanner`."""
        return self.table.scanner(columns, filter, **options)

    def to_table(self, columns: Any = None, filter: Any = None, **options: Any) -> pa.Table:
        """Return rows as an Arrow table."""
        return self.scanner(columns, filter, **options).to_table()

    def to_batches(self, columns: Any = None, filter: Any = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """Stream rows as record batches."""
        return self.scanner(columns, filter, **options).to_batches()

    def head(self, num_rows: int, columns: Any = None, filter: Any = None, **options: Any) -> pa.Table:
        """Return the first rows."""
        return self.scanner(columns, filter, **options).head(num_rows)

    def take(self, indices: Any, columns: Any = None, filter: Any = None, **options: Any) -> pa.Table:
        """Return rows by position."""
        if filter is None and not options:
            return self.table.take(indices, columns)
        return self.scanner(columns, filter, **options).take(indices)

    def count_rows(self, filter: Any = None, **options: Any) -> int:
        """Return the number of rows."""
        return self.table.count_rows(filter, **options)

    def get_fragments(self, *_: Any, **__: Any) -> NoReturn:
        """Not supported: use `LanceDataset.get_fragments`."""
        raise UnsupportedFormatError("ask the LanceDataset for its fragments")

    def join(self, *_: Any, **__: Any) -> NoReturn:
        """Not supported."""
        raise _unsupported_error("join")

    def join_asof(self, *_: Any, **__: Any) -> NoReturn:
        """Not supported."""
        raise _unsupported_error("join_asof")

    def filter(self, *_: Any, **__: Any) -> NoReturn:
        """Not supported: pass filters to `scanner` or `to_table`."""
        raise _unsupported_error("filter")

    def sort_by(self, *_: Any, **__: Any) -> NoReturn:
        """Not supported: pass order_by to `scanner` or `to_table`."""
        raise _unsupported_error("sort_by")

    def replace_schema(self, *_: Any, **__: Any) -> NoReturn:
        """Not supported: use the methods of `LanceDataset` that change columns."""
        raise _unsupported_error("replace_schema")

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export all rows through Arrow's C stream interface."""
        return self.table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"ArrowDataset({self.table!r})"


def _unsupported_error(name: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(f"{name} is not there for Lance tables: read rows with to_table() first")
