"""TBLPROPERTIES that have a meaning here, and the check for names that nearly have one.

    primary_key               names of the columns of the primary key, with commas between them
    enable_stable_row_ids     true if rows keep their ids
    data_storage_version      the version of the data files, where it is not that of new tables
    compression               the compression of all columns
    <column>.<option>         how a column is stored; see column_options.py
    partition-fields          what PARTITIONED BY declares; see `table.format.partitions`
    anything else             a setting of the table

Other names that nearly equal one of these are refused.
"""

from __future__ import annotations

from spark_lance.errors import OptionError
from spark_lance.spark.options.column_options import COLUMN_OPTIONS, column_option
from spark_lance.spark.options.foreign_options import close_name, close_suffix
from spark_lance.table.format.partitions import PARTITION_FIELDS

__all__ = [
    "CLUSTERING",
    "IDENTIFIERS",
    "PRIMARY_KEY",
    "SORT_ORDER",
    "TABLE_OPTIONS",
    "check_setting",
    "is_fixed",
]

PRIMARY_KEY = "primary_key"
# How OPTIMIZE t FULL orders the rows, and the columns that tell rows apart in change logs.
SORT_ORDER = "sort-order"
CLUSTERING = "clustering-columns"
IDENTIFIERS = "identifier-fields"
# Options of a new table, next to the options of its columns.
TABLE_OPTIONS = frozenset({"compression", "enable_stable_row_ids", "data_storage_version"})

_NAMES = {name: name for name in (PRIMARY_KEY, *sorted(TABLE_OPTIONS))}
_SUFFIXES = tuple(f".{option.name}" for option in COLUMN_OPTIONS)
# Settings that other parts of the package read. They resemble no option.
_SETTINGS = ("lance.auto_cleanup.", "lance.compaction.")


def is_fixed(name: str) -> bool:
    """Whether a property is one that only CREATE TABLE can set."""
    return name == PRIMARY_KEY or name in TABLE_OPTIONS or column_option(name.lower()) is not None


def check_setting(name: str) -> None:
    """Refuse a setting whose name is nearly that of a property with a meaning.

    Raises:
        OptionError: the name resembles a property; the message has the right name.
    """
    if is_fixed(name) or name.startswith(_SETTINGS):
        return
    if name == PARTITION_FIELDS:
        raise OptionError(
            f"property {name!r} is set by PARTITIONED BY: write CREATE TABLE ... PARTITIONED BY (column), or "
            "ALTER TABLE ... ADD PARTITION FIELD column"
        )
    suggestion = close_name(name, _NAMES) or close_suffix(name.lower(), _SUFFIXES)
    if suggestion is not None:
        raise OptionError(f"unknown table property {name!r}: did you mean {suggestion!r}?")
