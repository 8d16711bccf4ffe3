"""Config of a table and metadata of the table, its schema and its fields."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_lance.errors import ConstraintError, OptionTypeError, suggestion
from spark_lance.proto import transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.commits.idempotent_writes import has_damaged_record
from spark_lance.table.format.reserved_names import IDENTITY_VALUES, check_settings, visible_settings
from spark_lance.table.operations.update_config import Texts, text_updates
from spark_lance.table.schema.constraints import (
    CHECK,
    PRIMARY_KEY,
    Constraint,
    column_names,
    constraint_setting,
    find_constraint,
    own_condition,
    table_constraints,
)
from spark_lance.table.versions.cleanup import PREFIX as AUTO_CLEANUP
from spark_lance.table.versions.cleanup import auto_cleanup_config

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset


@dataclass(frozen=True)
class DatasetSettings:
    """The config of a table, and the metadata of the table, its schema and its fields.

    Each change commits one version. Get it as `LanceDataset.settings`.
    """

    dataset: LanceDataset

    def get(self) -> dict[str, str]:
        """Return the table's config without the internal keys of this package."""
        return visible_settings(self.dataset.manifest.config)

    @property
    def metadata(self) -> dict[str, str]:
        """The table metadata, which is not the schema metadata `schema.metadata`."""
        return dict(self.dataset.manifest.table_metadata)

    def update(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set keys of the table's config and return the new version.

        Args:
            values: key -> value. A value of None deletes the key. Keys that start with `lance.` belong to the
                format.
            replace: whether to remove all other keys.

        Raises:
            OptionError: a key is internal, as most keys that start with `spark_lance.` are.
            IncompatibleConflictError: another writer updated one of the keys concurrently.
            CommitError: the commit failed; see its subclasses.
        """
        settings: Any = values
        if not isinstance(settings, Mapping) or not all(
            isinstance(value, str) or value is None for value in settings.values()
        ):
            raise OptionTypeError(
                f"settings are a dict from keys to texts or None, such as {{'owner': 'etl'}}, not {values!r}"
            )
        damaged = has_damaged_record(self.dataset.manifest)
        check_settings({key: value for key, value in values.items() if value is not None or not damaged})
        if replace:
            config = self.dataset.manifest.config
            counters = {key: config[key] for key in config if key.startswith(IDENTITY_VALUES)}
            values = {**counters, **dict(map(constraint_setting, self.constraints)), **values}
        return self._commit_update(config_updates=text_updates(values, replace=replace))

    def delete(self, keys: Sequence[str]) -> LanceDataset:
        """Delete keys of the table's config. Missing keys are ignored. Errors as for `update_config`."""
        return self.update(dict.fromkeys(keys))

    def enable_auto_cleanup(self, options: Mapping[str, int]) -> LanceDataset:
        """Turn on automatic cleanup; options as `auto_cleanup_options` of `write_dataset`.

        Raises:
            OptionError: an option is missing or unknown, or has a bad value.
        """
        return self.update(auto_cleanup_config(options))

    def disable_auto_cleanup(self) -> LanceDataset:
        """Turn off automatic cleanup."""
        return self.delete([key for key in self.get() if key.startswith(AUTO_CLEANUP)])

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The table's constraints, sorted by name."""
        return table_constraints(self.dataset.manifest.config)

    def add_constraint(self, name: str, expression: str) -> LanceDataset:
        """Add a CHECK constraint and return the new version. All writers of this package check it.

        Args:
            name: name of the constraint, unique in the table.
            expression: a condition such as "price >= 0". A null result is not a violation.

        Raises:
            ConstraintError: the name is taken, a row violates the condition, or only Spark can evaluate it.
            CommitError: the commit failed; see its subclasses.
        """
        schema = self.dataset.lance_schema
        arrow = pa.schema([field.read_field() for field in schema.fields])
        if own_condition(expression, arrow) is None:
            words = re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'", "", expression))
            near = next(
                (
                    hint
                    for word in words
                    if word not in arrow.names and (hint := suggestion(word, arrow.names))
                ),
                "",
            )
            raise ConstraintError(
                f"constraint {name} ({expression}) is no condition on {', '.join(arrow.names)} that is "
                "evaluated without Spark: compare columns with literals, or use LanceTable.addConstraint"
                f"{near}"
            )
        columns = column_names(expression, arrow.names)
        return self.add(Constraint(name, CHECK, expression, columns, enforced=True))

    def add(self, constraint: Constraint) -> LanceDataset:
        """Add a validated constraint and return the new version.

        Raises:
            ConstraintError: the name is taken, or the table already has a primary key.
            CommitError: the commit failed; see its subclasses.
        """
        existing = find_constraint(self.dataset.manifest.config, constraint.name)
        if existing is not None:
            raise ConstraintError(
                f"{self.dataset.uri} has a constraint {existing.name} ({existing.sql}) already: drop it first"
            )
        keys = [one for one in self.constraints if one.type == PRIMARY_KEY]
        if constraint.type == PRIMARY_KEY and keys:
            raise ConstraintError(
                f"{self.dataset.uri} has the primary key {keys[0].name} ({keys[0].sql}): "
                f"ALTER TABLE t DROP CONSTRAINT {keys[0].name} first"
            )
        key, value = constraint_setting(constraint)
        return self._commit_update(config_updates=text_updates({key: value}))

    def drop_constraint(self, name: str, *, if_exists: bool = False) -> LanceDataset:
        """Drop a constraint and return the new version, or this one if it does not exist and `if_exists`.

        Raises:
            ConstraintError: the constraint does not exist, and `if_exists` is false.
            CommitError: the commit failed; see its subclasses.
        """
        existing = find_constraint(self.dataset.manifest.config, name)
        if existing is None and if_exists:
            return self.dataset
        if existing is None:
            names = [one.name for one in self.constraints]
            others = (
                f"there are: {', '.join(names)}{suggestion(name, names)}" if names else "the table has none"
            )
            raise ConstraintError(f"{self.dataset.uri} has no constraint {name}; {others}")
        return self._commit_update(config_updates=text_updates({constraint_setting(existing)[0]: None}))

    def update_metadata(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set keys of the table metadata; arguments and errors as for `update_config`."""
        return self._commit_update(table_metadata_updates=text_updates(values, replace=replace))

    def update_schema_metadata(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set keys of the schema metadata; arguments and errors as for `update_config`."""
        return self._commit_update(schema_metadata_updates=text_updates(values, replace=replace))

    def update_field_metadata(self, updates: Mapping[str, Texts], *, replace: bool = False) -> LanceDataset:
        """Set keys of field metadata and return the new version.

        Args:
            updates: path of a field (`a.b` for a struct field) -> keys and values, as for `update_config`.
            replace: whether to remove all other keys of these fields.

        Raises:
            SchemaError: a field does not exist, or the metadata would make it a primary key column.
            CommitError: the commit conflicts with another writer; see its subclasses.
        """
        by_id = {
            self.dataset.manifest.schema.find(path)[-1].id: text_updates(values, replace=replace)
            for path, values in updates.items()
        }
        return self._commit_update(field_metadata_updates=by_id)

    def _commit_update(self, **updates: Any) -> LanceDataset:
        operation = transaction_pb2.Transaction.UpdateConfig(**updates)
        return self.dataset.at(
            commit_operation(self.dataset.table, operation, read_version=self.dataset.version)
        )
