"""Sort keys of a table's rows: WRITE ORDERED BY, CLUSTER BY and OPTIMIZE ZORDER BY."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from spark_lance.errors import SchemaError, suggestion
from spark_lance.file.base.schema import Schema, split_path
from spark_lance.spark.options.table_properties import SORT_ORDER, clustering_columns, split_names
from spark_lance.spark.schema.read_schema import find_column

# A path with a direction, as in ORDER BY.
_SORT_KEY = re.compile(
    r"((?:`(?:[^`]|``)*`|[^\s`])+)(?:\s+(ASC|DESC))?(?:\s+NULLS\s+(FIRST|LAST))?", re.IGNORECASE
)
# The path in the table's spelling, whether the order descends, and whether nulls are last.
SortKey = tuple[list[str], bool, bool]


def sort_key(text: str, schema: Schema) -> SortKey:
    """Return the path of a sort key, whether it descends, and whether its nulls are last.

    Args:
        text: a column, or a path with dots into a struct, and a direction as in ORDER BY. The whole text can
            also be the name of a column. Case matters only if several names differ only in case.
        schema: schema of the table.

    Raises:
        SchemaError: the column or nested field does not exist, or Spark cannot sort by it, because it has
            maps.
    """
    columns = [field.name for field in schema.fields]
    match = _SORT_KEY.fullmatch(text)
    if text in columns or match is None:
        path, descends, nulls = [text], False, None
    else:
        descends, nulls = (match[2] or "").upper() == "DESC", match[3]
        path = [match[1]] if match[1] in columns else split_path(match[1])
    field = find_column(schema, path[0])
    names = [field.name]
    for name in path[1:]:
        children = field.children if field.kind == "struct" else ()
        child = next((each for each in children if each.name.lower() == name.lower()), None)
        if child is None:
            hint = suggestion(name, [each.name for each in children])
            raise SchemaError(f"column {'.'.join(names)!r} has no field {name!r}{hint}")
        names.append(child.name)
        field = child
    if any(node.kind == "map" for node in field.walk()):
        raise SchemaError(f"column {'.'.join(names)!r} has maps, which have no order: use another column")
    return names, descends, (nulls or ("LAST" if descends else "FIRST")).upper() == "LAST"


def valid_sort_keys(texts: Iterable[str], schema: Schema) -> list[SortKey]:
    """Return the sort keys before the first key that does not fit the table.

    A stored key may no longer fit, because another writer has changed the table's columns.
    """
    keys: list[SortKey] = []
    for text in texts:
        try:
            keys.append(sort_key(text, schema))
        except SchemaError:
            break
    return keys


def write_order(config: Mapping[str, str], schema: Schema) -> list[SortKey]:
    """Return the order of written rows: WRITE ORDERED BY decides it, or else CLUSTER BY."""
    return valid_sort_keys(split_names(config.get(SORT_ORDER, "")) or clustering_columns(config), schema)
