"""The base class of the mutable dataset of pylance."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.dataset

import spark_lance.datasets.dataset as values
from spark_lance.compat.lance.blob import with_blob_types
from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.compat.lance.session import Session
from spark_lance.datasets.lance_schema import LanceSchema
from spark_lance.datasets.show import LanceStats
from spark_lance.datasets.versions import DatasetBasePath

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DatasetBase", "Stats"]

# Statistics of vector index segments that pylance does not report.
_OWN_FIGURES = ("num_fragments", "params", "size_bytes")


@raises_os_errors
class Stats(LanceStats):
    """The methods of `LanceDataset.stats`."""

    def index_stats(self, index_name: str) -> dict[str, Any]:
        """Return the statistics of an index. A vector index has only the values that pylance reports."""
        stats = super().index_stats(index_name)
        for segment in stats["indices"]:
            if "centroids" in segment:
                for name in _OWN_FIGURES:
                    segment.pop(name, None)
        return stats


@raises_os_errors
class DatasetBase(pyarrow.dataset.Dataset):  # type: ignore[misc]
    """A table at a version.

    Attributes:
        value: the `spark_lance.LanceDataset` of the current version.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        version: int | str | None = None,
        block_size: int | None = None,
        index_cache_size: int | None = None,
        metadata_cache_size: int | None = None,
        commit_lock: Any = None,
        storage_options: Mapping[str, str] | None = None,
        serialized_manifest: bytes | None = None,
        default_scan_options: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        dataset = values.dataset(uri, version, storage_options, commit_lock=commit_lock)
        self._take(dataset, default_scan_options)

    def _take(self, value: values.LanceDataset, scan_options: Mapping[str, Any] | None = None) -> None:
        self.value = value
        self._default_scan_options: Mapping[str, Any] | None = scan_options

    @classmethod
    def of(cls, value: values.LanceDataset, scan_options: Mapping[str, Any] | None = None) -> Self:
        """Return a dataset for an open version."""
        instance = cls.__new__(cls)
        instance._take(value, scan_options)
        return instance

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).of, (self.value, self._default_scan_options)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.value, self._default_scan_options

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._take(*state)

    def __copy__(self) -> Self:
        return self.of(self.value, self._default_scan_options)

    def __len__(self) -> int:
        return self.value.count_rows()

    def __repr__(self) -> str:
        return repr(self.value)

    def _repr_html_(self) -> str:
        return self.value._repr_html_()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export all rows through Arrow's C stream interface."""
        return self.value.__arrow_c_stream__(requested_schema)

    @property
    def uri(self) -> str:
        """The URI of the table."""
        return self.value.uri

    @property
    def store(self) -> Any:
        """The store of the table."""
        return self.value.store

    @property
    def root(self) -> str:
        """The root path of the table in the store."""
        return self.value.root

    @property
    def _ds(self) -> Self:
        return self

    def session(self) -> Session:
        """Return the session. All datasets of the process share its caches."""
        return Session()

    @property
    def initial_storage_options(self) -> dict[str, Any] | None:
        """The options of the table's store."""
        return dict(self.value.store.options) or None

    def latest_storage_options(self) -> dict[str, Any] | None:
        """Return the options of the table's store."""
        return self.initial_storage_options

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows of a scan without arguments."""
        if self._default_scan_options:
            return self.scanner().projected_schema
        return with_blob_types(self.value.schema)

    @property
    def schema_metadata(self) -> dict[str, str]:
        """The metadata of the schema."""
        return dict(self.value.lance_schema.metadata)

    @property
    def lance_schema(self) -> LanceSchema:
        """The schema with field ids."""
        return LanceSchema(self.value.lance_schema)

    @property
    def data_storage_version(self) -> str:
        """The format version of the data files."""
        return self.value.data_storage_version

    @property
    def max_field_id(self) -> int:
        """The highest field id that the table uses or has used."""
        return self.value.max_field_id

    @property
    def has_stable_row_ids(self) -> bool:
        """Whether rows keep their ids when they move."""
        return self.value.has_stable_row_ids

    @property
    def partition_expression(self) -> NoReturn:
        """Not supported."""
        raise NotImplementedError("partitioning not yet supported")

    @property
    def stats(self) -> Stats:
        """Methods for statistics of the table and its indexes."""
        return Stats(self.value)

    def validate(self) -> None:
        """Read the whole version and check it."""
        self.value.validate()

    def base_paths(self) -> dict[int, DatasetBasePath]:
        """Return the base paths by id."""
        return {base.id: base for base in self.value.base_paths()}
