"""Methods that change rows, columns, indexes and settings. A commit moves the dataset to the new version."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.compat.lance.base import DatasetBase
from spark_lance.compat.lance.optimize import DatasetOptimizer
from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.datasets.operations import Index, Transaction
from spark_lance.table.versions.cleanup import CleanupStats
from spark_lance.table.versions.versions import load_version

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "Changes",
    "IndexConfig",
    "MergeInsertBuilder",
]

_INDEX_LISTS = ("fields", "field_names", "segments")


@raises_os_errors
class MergeInsertBuilder:
    """Builder of a merge; see `spark_lance.datasets.merge.MergeInsertBuilder`."""

    def __init__(self, dataset: Any, on: str | Iterable[str] | None) -> None:
        self._dataset = dataset
        self._builder = dataset.value.merge_insert(on)

    def when_matched_update_all(self, condition: str | None = None) -> MergeInsertBuilder:
        """Replace the rows whose key is in the data."""
        self._builder.when_matched_update_all(condition)
        return self

    def when_matched_delete(self) -> MergeInsertBuilder:
        """Delete the rows whose key is in the data."""
        self._builder.when_matched_delete()
        return self

    def when_matched_fail(self) -> MergeInsertBuilder:
        """Fail if a row of the table has a key of the data."""
        self._builder.when_matched_fail()
        return self

    def when_not_matched_insert_all(self) -> MergeInsertBuilder:
        """Insert the rows of the data whose key is new."""
        self._builder.when_not_matched_insert_all()
        return self

    def when_not_matched_by_source_delete(self, expr: str | None = None) -> MergeInsertBuilder:
        """Delete the rows whose key is not in the data."""
        self._builder.when_not_matched_by_source_delete(expr)
        return self

    def conflict_retries(self, max_retries: int) -> MergeInsertBuilder:
        """Set the maximum number of retries after a conflict."""
        self._builder.conflict_retries(max_retries)
        return self

    def retry_timeout(self, timeout: timedelta) -> MergeInsertBuilder:
        """Set the time after which the merge is not retried."""
        self._builder.retry_timeout(timeout)
        return self

    def use_index(self, use_index: bool) -> MergeInsertBuilder:
        """Set whether the merge can use indexes of the key columns."""
        self._builder.use_index(use_index)
        return self

    def explain_plan(self, schema: pa.Schema | None = None, verbose: bool = False) -> str:
        """Return the execution plan of the merge, as a tree."""
        plan: str = self._builder.explain_plan(schema, verbose)
        return plan

    def analyze_plan(self, data_obj: Any, *, schema: pa.Schema | None = None) -> str:
        """Run the merge without committing it, and return its plan with read and write metrics."""
        plan: str = self._builder.analyze_plan(data_obj, schema)
        return plan

    def target_bases(self, bases: Iterable[str]) -> MergeInsertBuilder:
        """Set the base paths for new files."""
        self._builder.target_bases(bases)
        return self

    def target_all_bases(self, include_primary: bool = True) -> MergeInsertBuilder:
        """Write new files to all base paths, with or without the table's own root."""
        self._builder.target_all_bases(include_primary)
        return self

    def execute(self, data_obj: Any, *, schema: pa.Schema | None = None) -> dict[str, int]:
        """Merge the data and return the numbers of changed rows."""
        result = self._builder.execute(data_obj, schema)
        self._dataset.value = result.dataset
        names = ("num_inserted_rows", "num_updated_rows", "num_deleted_rows")
        return {name: getattr(result, name) for name in names}

    def execute_uncommitted(
        self, data_obj: Any, *, schema: pa.Schema | None = None
    ) -> tuple[Transaction, dict[str, int]]:
        """Write the files of the merge without a commit.

        Return the transaction for `LanceDataset.commit` and the numbers of changed rows.
        """
        transaction, counts = self._builder.execute_uncommitted(data_obj, schema)
        return transaction, counts


# Arguments of index builds that do not affect search results.
_HINTS = frozenset(
    {
        "filter_nan",
        "index_cache_size",
        "index_file_version",
        "progress_callback",
        "shuffle_partition_batches",
        "shuffle_partition_concurrency",
        "skip_transpose",
        "storage_options",
        "train",
        "format_version",
        "accelerator",
        "num_workers",
        "memory_limit",
    }
)


@dataclass(frozen=True)
class IndexConfig:
    """An index type and its options.

    Attributes:
        index_type: the type, such as "btree".
        parameters: its options.
    """

    index_type: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@raises_os_errors
class Changes(DatasetBase):
    """The methods that change a dataset."""

    def delete(
        self, predicate: Any, *, conflict_retries: int = 10, retry_timeout: timedelta = timedelta(seconds=30)
    ) -> dict[str, int]:
        """Delete rows and return their number."""
        self.value = self.value.delete(
            predicate, conflict_retries=conflict_retries, retry_timeout=retry_timeout
        )
        before = load_version(self.value.table, self.version - 1)
        rows = self.value.at(before).count_rows() - self.value.count_rows()
        return {"num_deleted_rows": rows}

    def truncate_table(self) -> None:
        """Delete all rows."""
        self.delete("true")

    def update(
        self,
        updates: Mapping[str, str],
        where: str | None = None,
        conflict_retries: int = 10,
        retry_timeout: timedelta = timedelta(seconds=30),
    ) -> dict[str, int]:
        """Set columns and return the number of updated rows."""
        if isinstance(where, pc.Expression):
            where = str(where)
        result = self.value.update(updates, where, conflict_retries, retry_timeout)
        self.value = result.dataset
        return {"num_rows_updated": result.num_rows_updated}

    def merge_insert(self, on: str | Iterable[str] | None = None) -> MergeInsertBuilder:
        """Return a builder of a merge."""
        return MergeInsertBuilder(self, on)

    def add_columns(
        self,
        transforms: Any,
        read_columns: list[str] | None = None,
        reader_schema: pa.Schema | None = None,
        batch_size: int | None = None,
    ) -> None:
        """Add columns."""
        self.value = self.value.add_columns(transforms, read_columns, reader_schema, batch_size)

    def drop_columns(self, columns: list[str]) -> None:
        """Drop columns."""
        self.value = self.value.drop_columns(columns)

    def alter_columns(self, *alterations: Mapping[str, Any]) -> None:
        """Rename columns, or change their types or nullability."""
        self.value = self.value.alter_columns(*alterations)

    def merge(
        self, data_obj: Any, left_on: str, right_on: str | None = None, schema: pa.Schema | None = None
    ) -> None:
        """Add the columns of other data, joined by key."""
        self.value = self.value.merge(data_obj, left_on, right_on, schema)

    @property
    def has_index(self) -> bool:
        """Whether the dataset has an index."""
        return self.value.has_index

    def list_indices(self) -> list[dict[str, Any]]:
        """Return the segments of all indexes."""
        return self.value.list_indices()

    def describe_indices(self) -> list[Any]:
        """Return the description of each index."""
        results = []
        for index in self.value.describe_indices():
            # pylance returns lists.
            lists: dict[str, Any] = {name: list(getattr(index, name)) for name in _INDEX_LISTS}
            results.append(replace(index, **lists))
        return results

    def index_statistics(self, index_name: str) -> dict[str, Any]:
        """Return the statistics of an index."""
        return self.value.index_statistics(index_name)

    def create_scalar_index(
        self,
        column: str,
        index_type: Any,
        name: str | None = None,
        *,
        replace: bool = True,
        fragment_ids: list[int] | None = None,
        index_uuid: str | None = None,
        **options: Any,
    ) -> None:
        """Build a scalar index.

        With `fragment_ids`, build only a part of an index. `merge_index_metadata` merges the parts.
        """
        if isinstance(index_type, IndexConfig):
            index_type, options = index_type.index_type, {**options, **index_type.parameters}
        options = {**_effective_options(options), "train": options.get("train", True)}
        if fragment_ids is not None:
            options.pop("train")
            self.value.indices.create_part(
                _only(column),
                index_type,
                name,
                fragment_ids=fragment_ids,
                index_uuid=index_uuid or str(uuid.uuid4()),
                **options,
            )
            return
        self.value = self.value.create_scalar_index(
            _only(column), index_type, name, replace=replace, **options
        )

    def create_index(
        self, column: str | list[str], index_type: str, name: str | None = None, **options: Any
    ) -> Any:
        """Build a vector index; with `fragment_ids`, build one segment of an index without a commit."""
        arguments = self._sized(_effective_options(options))
        if options.get("train") is False:
            raise NotImplementedError("Creating empty vector indices with train=False is not yet implemented")
        if "fragment_ids" in arguments:
            return self.create_index_uncommitted(column, index_type, name, **arguments)
        arguments.pop("index_uuid", None)
        self.value = self.value.create_index(
            _only(column), index_type, name, **{"replace": False, **arguments}
        )
        return self

    def create_index_uncommitted(
        self, column: str | list[str], index_type: str, name: str | None = None, **options: Any
    ) -> Index:
        """Build an index segment of some fragments, without a commit."""
        if options.get("fragment_ids") is None:
            raise ValueError("create_index_uncommitted requires fragment_ids for distributed index build")
        arguments = self._sized(_effective_options(options))
        arguments.pop("replace", None)
        return self.value.create_index_uncommitted(_only(column), index_type, name, **arguments)

    def merge_index_metadata(self, index_uuid: str, index_type: str, *_: Any, **__: Any) -> None:
        """Merge the parts of an index segment, without a commit."""
        self.value.merge_index_metadata(index_uuid, index_type)

    def merge_existing_index_segments(self, segments: list[Index]) -> Index:
        """Merge uncommitted index segments, without a commit."""
        return self.value.merge_existing_index_segments(segments)

    def commit_existing_index_segments(self, index_name: str, column: str, segments: list[Index]) -> Self:
        """Commit segments as an index."""
        self.value = self.value.commit_existing_index_segments(index_name, column, segments)
        return self

    def _sized(self, options: dict[str, Any]) -> dict[str, Any]:
        if (size := options.pop("target_partition_size", None)) is not None:
            options.setdefault("num_partitions", max(1, round(self.value.count_rows() / size)))
        return options

    def drop_index(self, name: str) -> None:
        """Drop an index."""
        self.value = self.value.drop_index(name)

    def prewarm_index(self, name: str, **_: Any) -> None:
        """Check that an index exists. Searches load indexes themselves, and the dataset caches them."""
        self.value.index_statistics(name)

    @property
    def optimize(self) -> DatasetOptimizer:
        """Methods for compaction and index maintenance."""
        return DatasetOptimizer(self)

    def cleanup_old_versions(
        self, older_than: timedelta | None = None, retain_versions: int | None = None, **options: Any
    ) -> CleanupStats:
        """Delete old versions."""
        options.pop("delete_concurrency", None)
        return self.value.cleanup_old_versions(older_than, retain_versions, **options)

    def config(self) -> dict[str, str]:
        """Return the settings."""
        return self.value.config()

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the table."""
        return self.value.metadata

    def update_config(self, upsert_values: Any, *, replace: bool = False) -> Any:
        """Set settings."""
        self.value = self.value.update_config(upsert_values, replace=replace)
        return self.config()

    def delete_config_keys(self, keys: list[str]) -> None:
        """Delete settings."""
        self.value = self.value.delete_config_keys(keys)

    def update_metadata(self, updates: Any, *, replace: bool = False) -> Any:
        """Set metadata of the table."""
        self.value = self.value.update_metadata(updates, replace=replace)
        return self.metadata

    def update_schema_metadata(self, updates: Any, *, replace: bool = False) -> Any:
        """Set metadata of the schema."""
        self.value = self.value.update_schema_metadata(updates, replace=replace)
        return dict(self.value.lance_schema.metadata)

    def replace_schema_metadata(self, new_metadata: Mapping[str, str]) -> None:
        """Replace the metadata of the schema."""
        self.value = self.value.update_schema_metadata(dict(new_metadata), replace=True)

    def update_field_metadata(
        self, field: str | Mapping[str, Any], updates: Any = None, **options: Any
    ) -> Any:
        """Set metadata of fields."""
        changes = field if isinstance(field, Mapping) else {field: updates}
        self.value = self.value.update_field_metadata(changes, **options)
        return None

    def replace_field_metadata(self, field_name: str, new_metadata: Mapping[str, str]) -> None:
        """Replace the metadata of a field."""
        self.value = self.value.update_field_metadata({field_name: dict(new_metadata)}, replace=True)


def _effective_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that affect an index. Options that are None count as missing."""
    return {key: value for key, value in options.items() if value is not None and key not in _HINTS}


def _only(column: str | Sequence[str]) -> str:
    """Return the only column of an index.

    Raises:
        NotImplementedError: the index has several columns.
    """
    if isinstance(column, str):
        return column
    if len(column) != 1:
        raise NotImplementedError("Creating multi-column indices is not supported")
    return column[0]
