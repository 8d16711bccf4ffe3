"""Match the columns of a newer version to those of an older one.

A column keeps its id as long as the table keeps its rows; a rename does not change the id. A cast assigns a
new id at the same position. An overwrite assigns new ids to all columns, so only names identify them. A
column that was dropped and added again is a different column: the rows in between had no values. (Lance table
format, field ids.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_lance.file.base.schema import Field, Schema
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.transaction import Transaction


@dataclass(frozen=True)
class OldColumn:
    """The counterpart of a top-level column in an older version.

    Attributes:
        field: the column in the older version.
        is_same: whether ids of nested fields mean the same in both versions.
    """

    field: Field
    is_same: bool = True


@dataclass(frozen=True)
class Step:
    """The relation between the columns of a version and of the previous version.

    Attributes:
        old, new: the two schemas.
        keeps_ids: whether an id identifies the same column in both.
        is_cast: whether a column may have a new id under the same name, by a cast or a restore.
    """

    old: Schema
    new: Schema
    keeps_ids: bool
    is_cast: bool

    @classmethod
    def of(cls, old: Manifest, new: Manifest, transaction: Transaction) -> Step:
        """Return the step from `old` to `new` by a transaction."""
        name = transaction.name
        keeps_ids = name not in ("clone", "overwrite") and (name != "restore" or _share_files(old, new))
        schema = old.schema
        same = old.message.fields == new.message.fields
        return cls(schema, schema if same else new.schema, keeps_ids, name in ("merge", "restore"))


def previous_columns(columns: Sequence[OldColumn | None], step: Step) -> list[OldColumn | None]:
    """Return the counterparts of a version's columns in the version before; None for missing ones."""
    if step.old is step.new:
        return list(columns)
    return [None if column is None else _find_previous(column, step) for column in columns]


def _find_previous(column: OldColumn, step: Step) -> OldColumn | None:
    field = column.field
    old_field = next((old for old in step.old.fields if old.name == field.name), None)
    if not step.keeps_ids:
        return None if old_field is None else OldColumn(old_field, False)
    same = next((old for old in step.old.fields if old.id == field.id), None)
    if same is not None:
        return OldColumn(same, column.is_same)
    if old_field is not None and step.is_cast and all(new.id != old_field.id for new in step.new.fields):
        return OldColumn(old_field, False)
    return None


def _share_files(one: Manifest, other: Manifest) -> bool:
    """Return whether two versions share a data file, so that there was no overwrite between them."""
    paths = {file.path for fragment in one.fragments for file in fragment.files}
    return any(file.path in paths for fragment in other.fragments for file in fragment.files)
