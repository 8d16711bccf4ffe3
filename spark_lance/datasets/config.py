"""Config of a table and metadata of the table, its schema and its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_lance.proto import transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.commits.idempotent_writes import has_damaged_record
from spark_lance.table.format.reserved_names import check_settings, visible_settings
from spark_lance.table.operations.update_config import Texts, text_updates
from spark_lance.table.versions.auto_cleanup import PREFIX as AUTO_CLEANUP
from spark_lance.table.versions.auto_cleanup import auto_cleanup_config

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset

__all__ = ["DatasetSettings"]


@dataclass(frozen=True)
class DatasetSettings:
    """The settings of a table, and the metadata of the table, its schema and its fields.

    Each change makes a new version.
    """

    dataset: LanceDataset

    def get(self) -> dict[str, str]:
        """Return the table's settings, without the internal ones of this package."""
        return visible_settings(self.dataset.manifest.config)

    @property
    def metadata(self) -> dict[str, str]:
        """The table's own metadata; that of its schema is `schema.metadata`."""
        return dict(self.dataset.manifest.table_metadata)

    def update(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set settings of the table and return the new version.

        Args:
            values: keys to set; None deletes a key. Keys beginning with `lance.` belong to the format.
            replace: drop all other keys.

        Raises:
            OptionError: a key is internal, as those that begin with `spark_lance.` are but for a few.
            IncompatibleConflictError: another writer has updated one of the keys meanwhile.
            CommitError: the commit failed; see its subclasses.
        """
        damaged = has_damaged_record(self.dataset.manifest)
        check_settings({key: value for key, value in values.items() if value is not None or not damaged})
        return self._update(config_updates=text_updates(values, replace=replace))

    def delete(self, keys: Sequence[str]) -> LanceDataset:
        """Delete settings of the table, whether or not they exist; errors as `update_config`."""
        return self.update(dict.fromkeys(keys))

    def enable_auto_cleanup(self, options: Mapping[str, int]) -> LanceDataset:
        """Let the table clean up by itself from now on; options as `auto_cleanup_options` of `write_dataset`.

        Raises:
            OptionError: an option is missing, unknown or cannot be used.
        """
        return self.update(auto_cleanup_config(options))

    def disable_auto_cleanup(self) -> LanceDataset:
        """Let the table clean up by itself no more."""
        return self.delete([key for key in self.get() if key.startswith(AUTO_CLEANUP)])

    def update_metadata(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set metadata of the table; arguments and errors as `update_config`."""
        return self._update(table_metadata_updates=text_updates(values, replace=replace))

    def update_schema_metadata(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set metadata of the schema (`schema.metadata`); arguments and errors as `update_config`."""
        return self._update(schema_metadata_updates=text_updates(values, replace=replace))

    def update_field_metadata(self, updates: Mapping[str, Texts], *, replace: bool = False) -> LanceDataset:
        """Set metadata of fields, named by path (`a.b` is a field of a struct), as `update_config` does.

        Raises:
            SchemaError: a field does not exist, or the metadata makes it a key.
            CommitError: another writer was in the way; see its subclasses.
        """
        by_id = {
            self.dataset.manifest.schema.find(path)[-1].id: text_updates(values, replace=replace)
            for path, values in updates.items()
        }
        return self._update(field_metadata_updates=by_id)

    def _update(self, **updates: Any) -> LanceDataset:
        operation = transaction_pb2.Transaction.UpdateConfig(**updates)
        return self.dataset.at(
            commit_operation(self.dataset.table, operation, read_version=self.dataset.version)
        )
