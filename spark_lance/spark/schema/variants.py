"""Spark's variants and columns of JSON: either becomes the other.

Spark exchanges a variant as struct<value: binary, metadata: binary>, the child `metadata` marked variant =
true. Its own package reads and writes what is in them, one at a time; equal ones are made once.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from pyspark.sql.types import VariantVal


def is_variant(arrow: pa.DataType) -> bool:
    """Tell a variant: a struct whose binary child `metadata` is marked so."""
    if not pa.types.is_struct(arrow) or {f.name for f in arrow} != {"value", "metadata"}:
        return False
    return (arrow.field("metadata").metadata or {}).get(b"variant") == b"true"


def variants_of_texts(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Return JSON texts as variants."""
    encoded = texts.dictionary_encode()
    values = [VariantVal.parseJson(text) for text in encoded.dictionary.to_pylist()]
    parts = [[value.value for value in values], [value.metadata for value in values]]
    columns = [pa.array(part, pa.binary()).take(encoded.indices).fill_null(b"") for part in parts]
    mask = texts.is_null() if texts.null_count else None
    return pa.StructArray.from_arrays(columns, fields=list(target), mask=mask)


def texts_of_variants(array: pa.StructArray) -> pa.Array:
    """Return variants as JSON text: dates and times as texts, binary in base64."""
    parts = [array.field(array.type.get_field_index(name)).to_pylist() for name in ("value", "metadata")]
    cache: dict[tuple[bytes, bytes], str] = {}
    texts: list[str | None] = []
    for there, *pair in zip(array.is_valid().to_pylist(), *parts, strict=True):
        key = (pair[0], pair[1])
        if there and key not in cache:
            cache[key] = VariantVal(*key).toJson()
        texts.append(cache[key] if there else None)
    return pa.array(texts, pa.string())


def without_variants(schema: pa.Schema, json_columns: Collection[str]) -> pa.Schema:
    """Return the schema of rows whose variants are text where the table has JSON."""
    return pa.schema(
        [
            field.with_type(pa.string()) if field.name in json_columns and is_variant(field.type) else field
            for field in schema
        ]
    )


def with_variant_texts(batch: pa.RecordBatch, json_columns: Collection[str]) -> pa.RecordBatch:
    """Return rows with the variants that go into columns of JSON as text."""
    schema = without_variants(batch.schema, json_columns)
    if schema.equals(batch.schema):
        return batch
    columns = [
        column if new.type == old.type else texts_of_variants(column)
        for column, old, new in zip(batch.columns, batch.schema, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
