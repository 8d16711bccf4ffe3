"""`LanceSchema`, a schema with field ids, for programs that commit files themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_lance.errors import ColumnNotFoundError
from spark_lance.file.base.extensions import restore_schema_types
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.version import DEFAULT_VERSION
from spark_lance.file.blob_writer import blobs_as_given, blobs_as_stored


@dataclass(frozen=True)
class LanceField:
    """A field of a schema."""

    stored_field: Field

    def id(self) -> int:
        """Return the field id."""
        return self.stored_field.id

    def name(self) -> str:
        """Return the name."""
        return self.stored_field.name

    def children(self) -> list[LanceField]:
        """Return the child fields."""
        return [LanceField(child) for child in self.stored_field.children]

    @property
    def metadata(self) -> dict[str, str]:
        """The field metadata."""
        return dict(self.stored_field.metadata)

    def to_arrow(self) -> pa.Field:
        """Return the Arrow field."""
        return restore_schema_types(pa.schema([self.stored_field.arrow_field()])).field(0)

    def is_unenforced_primary_key(self) -> bool:
        """Return whether the field is part of the primary key."""
        return self.stored_field.key_position is not None

    def unenforced_primary_key_position(self) -> int | None:
        """Return the field's position in the primary key; None if it has no position."""
        return self.stored_field.key_position or None

    def __repr__(self) -> str:
        inner = f", children: {self.children()}" if self.stored_field.children else ""
        return (
            f'Field {{ name: "{self.name()}", id: {self.id()}, type: {self.stored_field.logical_type}, '
            f"nullable: {str(self.stored_field.nullable).lower()}{inner} }}"
        )


@dataclass(frozen=True)
class LanceSchema:
    """A schema with field ids."""

    stored_schema: Schema

    @classmethod
    def from_pyarrow(cls, schema: pa.Schema, first_id: int = 0) -> LanceSchema:
        """Return the schema of a new table. Field ids start at `first_id`; parents precede their children.

        Raises:
            SchemaError: Lance cannot store a type.
        """
        storage_schema = pa.schema(
            [blobs_as_stored(field, DEFAULT_VERSION) for field in schema], schema.metadata
        )
        schema_with_ids = Schema.from_arrow(storage_schema, first_id)
        fields = tuple(
            blobs_as_given(*each) for each in zip(schema_with_ids.fields, storage_schema.types, strict=True)
        )
        return cls(Schema(fields, schema_with_ids.metadata))

    def to_pyarrow(self) -> pa.Schema:
        """Return the Arrow schema."""
        return restore_schema_types(self.stored_schema.to_arrow())

    def fields(self) -> list[LanceField]:
        """Return the top-level fields."""
        return [LanceField(field) for field in self.stored_schema.fields]

    def field(self, name: str) -> LanceField | None:
        """Return the field with a name or a path such as "s.x"; None if it does not exist."""
        try:
            return LanceField(self.stored_schema.find(name)[-1])
        except ColumnNotFoundError:
            return None

    def field_case_insensitive(self, name: str) -> LanceField | None:
        """Return the field with a name or path, ignoring case; None if it does not exist."""
        exact = self.field(name)
        if exact is not None:
            return exact
        paths = {path.lower(): number for number, path in self.stored_schema.paths.items()}
        field_id = paths.get(name.lower())
        matches = [field for field in self.stored_schema.walk() if field.id == field_id]
        return LanceField(matches[0]) if matches else None

    def unenforced_primary_key(self) -> Sequence[LanceField]:
        """Return the fields of the primary key, in key order."""
        keys = [field for field in self.stored_schema.walk() if field.key_position is not None]
        return [LanceField(f) for f in sorted(keys, key=lambda f: (not f.key_position, f.key_position, f.id))]

    def __repr__(self) -> str:
        return f"Schema {{ fields: {self.fields()}, metadata: {dict(self.stored_schema.metadata)} }}"
