"""Config of a table and metadata of the table, its schema and its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from spark_lance.datasets.base import DatasetBase
from spark_lance.late import late
from spark_lance.proto import transaction_pb2
from spark_lance.table.reserved_names import check_settings, visible_settings
from spark_lance.table.versions.auto_cleanup import PREFIX as AUTO_CLEANUP

if TYPE_CHECKING:
    from spark_lance.table.commits.commit import commit_operation
    from spark_lance.table.commits.idempotent_writes import has_damaged_record
    from spark_lance.table.operations.update_config import Texts, text_updates
    from spark_lance.table.versions.auto_cleanup import auto_cleanup_config
else:
    commit_operation = late("spark_lance.table.commits.commit", "commit_operation")
    has_damaged_record = late("spark_lance.table.commits.idempotent_writes", "has_damaged_record")
    text_updates = late("spark_lance.table.operations.update_config", "text_updates")
    auto_cleanup_config = late("spark_lance.table.versions.auto_cleanup", "auto_cleanup_config")

__all__ = ["ConfigMixin"]

_Same = TypeVar("_Same", bound="ConfigMixin")


class ConfigMixin(DatasetBase):
    """Key-value pairs that a table carries; each change makes a new version."""

    def config(self) -> dict[str, str]:
        """Return the table's settings, without the internal ones of this package."""
        return visible_settings(self.manifest.config)

    @property
    def metadata(self) -> dict[str, str]:
        """The table's own metadata; that of its schema is `schema.metadata`."""
        return dict(self.manifest.table_metadata)

    def update_config(self: _Same, values: Texts, *, replace: bool = False) -> _Same:
        """Set settings of the table and return the new version.

        Args:
            values: keys to set; None deletes a key. Keys beginning with `lance.` belong to the format.
            replace: drop all other keys.

        Raises:
            OptionError: a key is internal, as those that begin with `spark_lance.` are but for a few.
            IncompatibleConflictError: another writer has updated one of the keys meanwhile.
            CommitError: the commit failed; see its subclasses.
        """
        damaged = has_damaged_record(self.manifest)
        check_settings({key: value for key, value in values.items() if value is not None or not damaged})
        return self._update(config_updates=text_updates(values, replace=replace))

    def delete_config_keys(self: _Same, keys: Sequence[str]) -> _Same:
        """Delete settings of the table, whether or not they exist; errors as `update_config`."""
        return self.update_config(dict.fromkeys(keys))

    def enable_auto_cleanup(self: _Same, options: Mapping[str, int]) -> _Same:
        """Let the table clean up by itself from now on; options as `auto_cleanup_options` of `write_dataset`.

        Raises:
            OptionError: an option is missing, unknown or cannot be used.
        """
        return self.update_config(auto_cleanup_config(options))

    def disable_auto_cleanup(self: _Same) -> _Same:
        """Let the table clean up by itself no more."""
        return self.delete_config_keys([key for key in self.config() if key.startswith(AUTO_CLEANUP)])

    def update_metadata(self: _Same, values: Texts, *, replace: bool = False) -> _Same:
        """Set metadata of the table; arguments and errors as `update_config`."""
        return self._update(table_metadata_updates=text_updates(values, replace=replace))

    def update_schema_metadata(self: _Same, values: Texts, *, replace: bool = False) -> _Same:
        """Set metadata of the schema (`schema.metadata`); arguments and errors as `update_config`."""
        return self._update(schema_metadata_updates=text_updates(values, replace=replace))

    def update_field_metadata(self: _Same, updates: Mapping[str, Texts], *, replace: bool = False) -> _Same:
        """Set metadata of fields, named by path (`a.b` is a field of a struct), as `update_config` does.

        Raises:
            SchemaError: a field does not exist, or the metadata makes it a key.
            CommitError: another writer was in the way; see its subclasses.
        """
        by_id = {
            self.manifest.schema.find(path)[-1].id: text_updates(values, replace=replace)
            for path, values in updates.items()
        }
        return self._update(field_metadata_updates=by_id)

    def _update(self: _Same, **updates: Any) -> _Same:
        operation = transaction_pb2.Transaction.UpdateConfig(**updates)
        return self._at(commit_operation(self.store, self.root, operation, read_version=self.version))
