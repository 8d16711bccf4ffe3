"""Partition fields and values of partitions as Java takes them.

Every scan needs these functions, so this module imports no more than they need.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from spark_lance.errors import OptionError, SchemaError
from spark_lance.file.base.schema import Schema
from spark_lance.spark.schema.types import spark_type
from spark_lance.table.format.partitions import PartitionSpec


def partitioning(config: Mapping[str, str], schema: Schema) -> list[dict[str, Any]]:
    """Return the partition fields of a table as Java takes them.

    A declaration that does not fit the table has none: statements that need it say what is wrong.
    """
    try:
        spec = PartitionSpec.of_config(config).bound(schema)
    except (OptionError, SchemaError):
        return []
    return [
        {
            "name": field.name,
            "source": field.source,
            "transform": field.transform,
            "width": field.width,
            "type": spark_type(field.type(schema.field(field.source).arrow_type())).json(),
        }
        for field in spec.fields
    ]


def partition_text(value: Any) -> str | None:
    """Return a value of a partition as Java takes it."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, bool):
        return str(value).lower()
    return format(value, "f") if isinstance(value, Decimal) else str(value)
