"""Fragments with the arguments and results of pylance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.dataset

from spark_lance.compat.lance.answers import writing_options
from spark_lance.compat.lance.blob import with_blob_bytes
from spark_lance.compat.lance.progress import FragmentWriteProgress, listener
from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.compat.lance.scanning import LanceScanner, exact_rows, scan_arguments
from spark_lance.datasets import building
from spark_lance.datasets import read as values
from spark_lance.datasets.fragment_metadata import (
    DataFile,
    DeletionFile,
    FragmentMetadata,
    RowDatasetVersionMeta,
    RowIdMeta,
)
from spark_lance.datasets.lance_schema import LanceSchema
from spark_lance.datasets.operations import Transaction
from spark_lance.table.writing.targets import MAX_ROWS_PER_FILE
from spark_lance.table.writing.write import reporting_fragments

__all__ = [
    "DEFAULT_MAX_BYTES_PER_FILE",
    "DataFile",
    "DeletionFile",
    "FragmentMetadata",
    "LanceFragment",
    "RowDatasetVersionMeta",
    "RowIdMeta",
    "write_fragments",
]

DEFAULT_MAX_BYTES_PER_FILE = 90 << 30


@raises_os_errors
class LanceFragment(pyarrow.dataset.Fragment):  # type: ignore[misc]
    """A fragment of a dataset."""

    def __init__(
        self, dataset: Any, fragment_id: int | None, *, fragment: values.LanceFragment | None = None
    ) -> None:
        if fragment is None:
            if fragment_id is None:
                raise ValueError("Either fragment or fragment_id must be specified")
            fragment = dataset.value.get_fragment(fragment_id)
            if fragment is None:
                raise ValueError(f"Fragment id does not exist: {fragment_id}")
        self._ds = dataset
        self.value = fragment

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._ds, self.value.fragment_id)

    def __repr__(self) -> str:
        files = [file.path for file in self.value.data_files()]
        return f"LanceFileFragment(id={self.fragment_id}, data_files={files})"

    @property
    def message(self) -> Any:
        """The protobuf message of the fragment in the manifest."""
        return self.value.message

    @staticmethod
    def create_from_file(filename: str, dataset: Any, fragment_id: int) -> FragmentMetadata:
        """Return a fragment of one file in the data folder of the table."""
        return building.fragment_from_file(filename, dataset.value, fragment_id)

    @staticmethod
    def create(
        dataset_uri: Any,
        data: Any,
        fragment_id: int | None = None,
        schema: pa.Schema | None = None,
        max_rows_per_group: int | None = None,  # noqa: ARG004
        progress: FragmentWriteProgress | None = None,
        mode: str = "append",
        *,
        data_storage_version: str | None = None,
        use_legacy_format: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        namespace_client: Any = None,  # noqa: ARG004
        table_id: list[str] | None = None,  # noqa: ARG004
        session: Any = None,  # noqa: ARG004
    ) -> FragmentMetadata:
        """Write data as one fragment, without a commit."""
        options = {"data_storage_version": data_storage_version, "use_legacy_format": use_legacy_format}
        with reporting_fragments(listener(progress, fragment_id or 0)):
            return values.LanceFragment.create(
                getattr(dataset_uri, "value", dataset_uri),
                data,
                fragment_id,
                schema,
                mode=mode,
                storage_options=storage_options,
                **writing_options(options),
            )

    @property
    def fragment_id(self) -> int:
        """The id of the fragment."""
        return self.value.fragment_id

    @property
    def metadata(self) -> FragmentMetadata:
        """The metadata of the fragment in the manifest."""
        return self.value.metadata

    @property
    def physical_rows(self) -> int:
        """The number of stored rows, including deleted rows."""
        return self.value.physical_rows

    @property
    def num_deletions(self) -> int:
        """The number of deleted rows."""
        return self.value.num_deletions

    @property
    def schema(self) -> pa.Schema:
        """The schema of the table."""
        return self.value.schema

    @property
    def physical_schema(self) -> pa.Schema:
        """The schema of the columns in the data files."""
        return self.value.physical_schema

    @property
    def partition_expression(self) -> NoReturn:
        """Not supported."""
        raise NotImplementedError("partitioning not yet supported")

    def data_files(self) -> list[DataFile]:
        """Return the data files."""
        return self.value.data_files()

    def deletion_file(self) -> str | None:
        """Return the path of the deletion file."""
        return self.value.deletion_file()

    def validate(self) -> None:
        """Check the files of the fragment."""
        self.value.validate()

    def count_rows(self, filter: Any = None) -> int:
        """Return the number of rows."""
        return self.value.count_rows(filter)

    def scanner(self, columns: Any = None, **options: Any) -> LanceScanner:
        """Return a scanner."""
        read = self.value.scanner(columns, **scan_arguments(options))
        return LanceScanner(read, self._ds, exact_rows(options))

    def to_table(self, columns: Any = None, **options: Any) -> pa.Table:
        """Return rows as an Arrow table."""
        return self.scanner(columns, **options).to_table()

    def to_batches(self, columns: Any = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """Return a stream of record batches."""
        return self.scanner(columns, **options).to_batches()

    def to_pandas(self, columns: Any = None, **options: Any) -> Any:
        """Return rows as a pandas DataFrame."""
        options.pop("blob_mode", None)
        return self.to_table(columns, **options).to_pandas()

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """Return the first rows."""
        return self.scanner(**options).head(num_rows)

    def take(self, indices: Any, columns: Any = None) -> pa.Table:
        """Return rows by position. Deleted rows do not count."""
        return self.value.take(indices, columns)

    def delete(self, predicate: str) -> FragmentMetadata | None:
        """Write a deletion file for the matching rows, without a commit."""
        return self.value.delete(predicate)

    def delete_rows(self, offsets: Iterable[int]) -> FragmentMetadata | None:
        """Write a deletion file for the rows at these offsets, without a commit."""
        return self.value.delete_rows(offsets)

    def merge_columns(
        self,
        value_func: Any,
        columns: list[str] | None = None,
        batch_size: int | None = None,
        reader_schema: pa.Schema | None = None,
    ) -> tuple[FragmentMetadata, LanceSchema]:
        """Write new columns, without a commit."""
        return self.value.merge_columns(value_func, columns, batch_size, reader_schema)

    def merge(
        self, data_obj: Any, left_on: str, right_on: str | None = None, schema: pa.Schema | None = None
    ) -> tuple[FragmentMetadata, LanceSchema]:
        """Write new columns from other data, without a commit."""
        return self.value.merge(data_obj, left_on, right_on, schema)

    def update_columns(
        self,
        data_obj: Any,
        left_on: str = "_rowid",
        right_on: str | None = None,
        schema: pa.Schema | None = None,
    ) -> tuple[FragmentMetadata, list[int]]:
        """Write new values of columns, without a commit."""
        return self.value.update_columns(data_obj, left_on, right_on, schema)

    def open_session(self, columns: Any = None, with_row_address: bool | None = None) -> FragmentSession:
        """Return a session for repeated reads of rows."""
        return FragmentSession(self, columns, bool(with_row_address))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export all rows through Arrow's C stream interface."""
        return self.value.__arrow_c_stream__(requested_schema)


@raises_os_errors
class FragmentSession:
    """Reads rows of a fragment by position, repeatedly."""

    def __init__(self, fragment: LanceFragment, columns: Any, with_row_address: bool) -> None:
        self._fragment = fragment
        names = columns if columns is not None else fragment.schema.names
        self._columns = [*names, "_rowaddr"] if with_row_address else columns

    def take(self, indices: Any) -> pa.Table:
        """Return rows by position. Deleted rows do not count."""
        return self._fragment.take(indices, self._columns)


def _reopened(dataset: Any, fragment_id: int) -> LanceFragment:
    return LanceFragment(dataset, fragment_id)


@raises_os_errors
def write_fragments(
    data: Any,
    dataset_uri: Any,
    schema: pa.Schema | None = None,
    *,
    return_transaction: bool = False,
    mode: str = "append",
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    storage_options: Mapping[str, Any] | None = None,
    target_bases: list[str] | None = None,
    base_store_params: Mapping[str, Mapping[str, str]] | None = None,
    external_blob_mode: str = "reference",
    allow_external_blob_outside_bases: bool = False,
    **options: Any,
) -> list[FragmentMetadata] | Transaction:
    """Write data as fragments, without a commit.

    Libraries inspect the argument names of this function to find out what is supported.
    """
    options |= {
        "target_bases": target_bases,
        "base_store_params": base_store_params,
        "external_blob_mode": external_blob_mode,
        "allow_external_blob_outside_bases": allow_external_blob_outside_bases,
    }
    options.pop("enable_stable_row_ids", None)
    target = getattr(dataset_uri, "value", dataset_uri)
    data, schema = with_blob_bytes(data, schema, target, {**options, "storage_options": storage_options})
    with reporting_fragments(listener(options.get("progress"))):
        return building.write_fragments(
            data,
            target,
            schema,
            mode=mode,
            max_rows_per_file=max_rows_per_file,
            storage_options=storage_options,
            return_transaction=return_transaction,
            **writing_options(options),
        )
