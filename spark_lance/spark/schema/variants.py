"""Converts between Spark's variants and columns of JSON.

Spark exchanges a variant as struct<value: binary, metadata: binary>, whose child `metadata` has the metadata
variant = true. PySpark encodes and decodes variants one at a time, so equal values are converted only once.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from pyspark.sql.types import VariantVal


def is_variant(arrow: pa.DataType) -> bool:
    """Return whether an Arrow type is a variant: a struct whose child `metadata` is marked as such."""
    if not pa.types.is_struct(arrow) or {f.name for f in arrow} != {"value", "metadata"}:
        return False
    return (arrow.field("metadata").metadata or {}).get(b"variant") == b"true"


def variants_of_texts(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert JSON texts to variants."""
    encoded = texts.dictionary_encode()
    values = [VariantVal.parseJson(text) for text in encoded.dictionary.to_pylist()]
    parts = [[value.value for value in values], [value.metadata for value in values]]
    columns = [pa.array(part, pa.binary()).take(encoded.indices).fill_null(b"") for part in parts]
    mask = texts.is_null() if texts.null_count else None
    return pa.StructArray.from_arrays(columns, fields=list(target), mask=mask)


def texts_of_variants(array: pa.StructArray) -> pa.Array:
    """Convert variants to JSON text. Dates and times become text, binary becomes base64."""
    parts = [array.field(array.type.get_field_index(name)).to_pylist() for name in ("value", "metadata")]
    cache: dict[tuple[bytes, bytes], str] = {}
    texts: list[str | None] = []
    for is_valid, *pair in zip(array.is_valid().to_pylist(), *parts, strict=True):
        key = (pair[0], pair[1])
        if is_valid and key not in cache:
            cache[key] = VariantVal(*key).toJson()
        texts.append(cache[key] if is_valid else None)
    return pa.array(texts, pa.string())


def without_variants(schema: pa.Schema, json_columns: Collection[str]) -> pa.Schema:
    """Return a schema in which variants for the table's JSON columns are text."""
    return pa.schema(
        [
            field.with_type(pa.string()) if field.name in json_columns and is_variant(field.type) else field
            for field in schema
        ]
    )


def with_variant_texts(batch: pa.RecordBatch, json_columns: Collection[str]) -> pa.RecordBatch:
    """Return rows in which variants for the table's JSON columns are text."""
    schema = without_variants(batch.schema, json_columns)
    if schema.equals(batch.schema):
        return batch
    columns = [
        column if new.type == old.type else texts_of_variants(column)
        for column, old, new in zip(batch.columns, batch.schema, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
