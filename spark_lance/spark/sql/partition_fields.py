"""Converts partition fields and partition values to the form that Java expects.

Every scan needs these functions, so this module imports little.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from spark_lance.errors import OptionError, SchemaError
from spark_lance.file.base.schema import Schema
from spark_lance.spark.schema.types import spark_type
from spark_lance.table.format.partitions import PartitionSpec


def partitioning(config: Mapping[str, str], schema: Schema) -> list[dict[str, Any]]:
    """Return the partition fields of a table in the form that Java expects.

    The result is empty if the declaration does not fit the table. Statements that need it raise the error.
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
    """Return a partition value in the form that Java expects."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return format(value, "f") if isinstance(value, Decimal) else str(value)
