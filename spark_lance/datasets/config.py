"""Config of a table and metadata of the table, its schema and its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_lance.errors import ConstraintError
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
        if replace:
            config = self.dataset.manifest.config
            counters = {key: config[key] for key in config if key.startswith(IDENTITY_VALUES)}
            values = {**counters, **dict(map(constraint_setting, self.constraints)), **values}
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

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints of the table, by name."""
        return table_constraints(self.dataset.manifest.config)

    def add_constraint(self, name: str, expression: str) -> LanceDataset:
        """Add a CHECK constraint and return the new version; from now on all our writers check it.

        Args:
            name: of the constraint, new in the table.
            expression: a condition such as "price >= 0". Rows for which it is null satisfy it.

        Raises:
            ConstraintError: the name is taken, a row violates the condition, or only Spark can evaluate it.
            CommitError: the commit failed; see its subclasses.
        """
        schema = self.dataset.lance_schema
        arrow = pa.schema([field.read_field() for field in schema.fields])
        if own_condition(expression, arrow) is None:
            raise ConstraintError(
                f"constraint {name} ({expression}) is no condition on {', '.join(arrow.names)} that is "
                "evaluated without Spark: compare columns with literals, or use LanceTable.addConstraint"
            )
        columns = column_names(expression, arrow.names)
        return self.add(Constraint(name, CHECK, expression, columns, enforced=True))

    def add(self, constraint: Constraint) -> LanceDataset:
        """Add a constraint that is known to fit the table, and return the new version; errors as above."""
        there = find_constraint(self.dataset.manifest.config, constraint.name)
        if there is not None:
            raise ConstraintError(
                f"{self.dataset.uri} has a constraint {there.name} ({there.sql}) already: drop it first"
            )
        keys = [one for one in self.constraints if one.type == PRIMARY_KEY]
        if constraint.type == PRIMARY_KEY and keys:
            raise ConstraintError(
                f"{self.dataset.uri} has the primary key {keys[0].name} ({keys[0].sql}): "
                f"ALTER TABLE t DROP CONSTRAINT {keys[0].name} first"
            )
        key, value = constraint_setting(constraint)
        return self._update(config_updates=text_updates({key: value}))

    def drop_constraint(self, name: str, *, if_exists: bool = False) -> LanceDataset:
        """Drop a constraint and return the new version, or this one if there is none and `if_exists`.

        Raises:
            ConstraintError: there is no constraint of the name, and not `if_exists`.
            CommitError: the commit failed; see its subclasses.
        """
        there = find_constraint(self.dataset.manifest.config, name)
        if there is None and if_exists:
            return self.dataset
        if there is None:
            names = ", ".join(one.name for one in self.constraints) or "none"
            raise ConstraintError(f"{self.dataset.uri} has no constraint {name}; there are: {names}")
        return self._update(config_updates=text_updates({constraint_setting(there)[0]: None}))

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
