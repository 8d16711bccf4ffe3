"""Reading rows of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pyarrow as pa

from spark_lance.compat.lance.base import DatasetBase
from spark_lance.compat.lance.fragment import LanceFragment
from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.compat.lance.scanning import LanceScanner, exact_rows, scan_arguments
from spark_lance.compat.lance.sql import SqlQueryBuilder
from spark_lance.errors import RowNotFoundError

__all__ = ["Reading"]


@raises_os_errors
class Reading(DatasetBase):
    """The methods that read a dataset."""

    def scanner(self, columns: Any = None, filter: Any = None, *args: Any, **options: Any) -> LanceScanner:
        """Describe a read."""
        names = ("limit", "offset", "nearest", "batch_size")
        arguments = {"columns": columns, "filter": filter, **dict(zip(names, args, strict=False)), **options}
        defaults = self._default_scan_options or {}
        arguments = {**defaults, **{name: value for name, value in arguments.items() if value is not None}}
        scanner = self.value.scanner(**scan_arguments(arguments))
        return LanceScanner(scanner, self, exact_rows(arguments), arguments.get("scan_stats_callback"))

    def to_table(self, columns: Any = None, filter: Any = None, *args: Any, **options: Any) -> pa.Table:
        """Read rows into memory."""
        return self.scanner(columns, filter, *args, **options).to_table()

    def to_batches(
        self, columns: Any = None, filter: Any = None, *args: Any, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Stream rows."""
        return self.scanner(columns, filter, *args, **options).to_batches()

    def to_pandas(self, columns: Any = None, filter: Any = None, **options: Any) -> Any:
        """Read rows into a DataFrame."""
        options.pop("blob_mode", None)
        return self.to_table(columns, filter, **options).to_pandas()

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """Read the first rows."""
        return self.scanner(**options).head(num_rows)

    def count_rows(self, filter: Any = None, **options: Any) -> int:
        """Count rows."""
        if filter is None and not options:
            return self.value.count_rows()
        return self.scanner(filter=filter, **options).count_rows()

    def take(self, indices: Any, columns: Any = None) -> pa.Table:
        """Return rows by position; a column that is named twice comes twice."""
        return _with_repeats(columns, lambda names: self.value.take(indices, names))

    def _take_rows(self, row_ids: Any, columns: Any = None, **_: Any) -> pa.Table:
        return _with_repeats(columns, lambda names: self.value.take_rows(row_ids, names))

    def take_blobs(
        self, blob_column: str, ids: Any = None, addresses: Any = None, indices: Any = None
    ) -> list[Any]:
        """Return blobs as files; nulls are left out."""
        try:
            blobs = self.value.take_blobs(blob_column, indices, ids=ids, addresses=addresses)
        except RowNotFoundError as error:
            if indices is not None:
                raise
            raise NotImplementedError(
                f"A take operation that includes row addresses must not target deleted rows: {error}"
            ) from error
        return [blob for blob in blobs if blob is not None]

    def sample(self, num_rows: int, columns: Any = None, randomize_order: bool = True, **_: Any) -> pa.Table:
        """Return rows chosen at random."""
        return self.value.sample(num_rows, columns, randomize_order)

    def sql(self, sql: str) -> SqlQueryBuilder:
        """Return a query in the making."""
        return SqlQueryBuilder(self.value, sql)

    def join(self, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        raise NotImplementedError("Versioning not yet supported")

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Not there."""
        raise NotImplementedError("Cannot replace the schema of a dataset")

    def filter(self, *_: Any, **__: Any) -> NoReturn:
        """Not there: `scanner` and `to_table` take filters."""
        raise NotImplementedError("give the filter to scanner() or to_table()")

    def sort_by(self, *_: Any, **__: Any) -> NoReturn:
        """Not there: `scanner` and `to_table` take order_by."""
        raise NotImplementedError("give order_by to scanner() or to_table()")

    join_asof = join

    def get_fragments(self, filter: Any = None) -> list[LanceFragment]:
        """Return the fragments."""
        if filter is not None:
            raise ValueError("get_fragments() does not support filter yet")
        return [LanceFragment(self, None, fragment=each) for each in self.value.get_fragments()]

    def get_fragment(self, fragment_id: int) -> LanceFragment | None:
        """Return the fragment of an id."""
        fragment = self.value.get_fragment(fragment_id)
        return None if fragment is None else LanceFragment(self, None, fragment=fragment)

    def fragment_ids(self) -> set[int]:
        """Return the ids of the fragments."""
        return {fragment.fragment_id for fragment in self.value.get_fragments()}


def _with_repeats(columns: Any, read: Callable[[Any], pa.Table]) -> pa.Table:
    """Return the result of `read` for some columns; a column may be given several times."""
    if not isinstance(columns, list | tuple) or len(set(columns)) == len(columns):
        return read(columns)
    return read(list(dict.fromkeys(columns))).select(list(columns))
