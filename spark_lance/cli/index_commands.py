"""The commands about indices: list, build, optimize, drop."""

from __future__ import annotations

import json
from typing import Any

from spark_lance.cli.names import Arguments
from spark_lance.cli.opening import open_table
from spark_lance.cli.output import Progress, as_json, print_table, say, size_text
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.index import known_indices
from spark_lance.errors import OptionError
from spark_lance.index.scalar.kinds import SCALAR_INDICES
from spark_lance.index.vector.storage import INDEX_TYPES
from spark_lance.io.progress import reporting


def list_indices(arguments: Arguments) -> int:
    """Show the indices of a table, and how many of its rows each of them knows."""
    dataset = open_table(arguments)
    total = dataset.count_rows()
    rows: list[dict[str, Any]] = [
        {
            "index": index.name,
            "type": index.index_type,
            "columns": list(index.field_names),
            "segments": len(index.segments),
            "rows": index.num_rows_indexed,
            "share": None if index.num_rows_indexed is None else index.num_rows_indexed / max(total, 1),
            "bytes": index.total_size_bytes,
        }
        for index in dataset.describe_indices()
        if index.fields
    ]
    if arguments.json:
        say(as_json(rows))
    elif rows:
        texts = [
            {
                **row,
                "share": None if row["share"] is None else f"{row['share']:.0%}",
                "bytes": size_text(row["bytes"]),
            }
            for row in rows
        ]
        print_table(tuple(rows[0]), [tuple(row.values()) for row in texts], wide=arguments.wide)
    else:
        say("none")
    return 0


def build_index(arguments: Arguments) -> int:
    """Build an index over a column."""
    dataset = open_table(arguments)
    kind = arguments.type.upper()
    options = _index_options(arguments.option)
    common: dict[str, Any] = {"name": arguments.name, "replace": arguments.replace}
    with Progress("building") as progress, reporting(progress):
        if kind in SCALAR_INDICES:
            result = dataset.create_scalar_index(arguments.column, kind, **common, **options)
        elif kind in INDEX_TYPES:
            parameters = {"metric": arguments.metric, "num_partitions": arguments.partitions}
            chosen = {key: value for key, value in parameters.items() if value is not None}
            result = dataset.create_index(arguments.column, kind, **common, **{**chosen, **options})
        else:
            types = ", ".join([*SCALAR_INDICES, *INDEX_TYPES])
            raise OptionError(f"there is no kind of index {arguments.type!r}, but {types}")
    return _said(arguments, f"built {arguments.name or arguments.column + '_idx'}", result)


def optimize_indices(arguments: Arguments) -> int:
    """Index the rows that indices do not cover yet."""
    dataset = open_table(arguments)
    names = [arguments.name] if arguments.name is not None else known_indices(dataset.manifest)
    with Progress("indexing") as progress, reporting(progress):
        dataset.optimize.optimize_indices(index_names=names)
    return _said(
        arguments, f"covers every row: {', '.join(names) or 'there is no index'}", dataset.checkout_latest()
    )


def drop_index(arguments: Arguments) -> int:
    """Take an index out of the table; older versions keep it."""
    return _said(arguments, f"dropped {arguments.name}", open_table(arguments).drop_index(arguments.name))


def _index_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return options of an index from texts such as `num_bits=4`; values are JSON where they can be."""
    options: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise OptionError(f"--option takes NAME=VALUE, not {text!r}")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def _said(arguments: Arguments, what: str, dataset: LanceDataset) -> int:
    if arguments.json:
        say(as_json({"done": what, "version": dataset.version}))
    else:
        say(f"{what} (version {dataset.version})")
    return 0
