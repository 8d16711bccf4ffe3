"""TBLPROPERTIES with an effect on Lance tables, and a check for names that resemble them.

    primary_key               names of the columns of the primary key, separated by commas
    enable_stable_row_ids     true if rows keep their ids
    data_storage_version      the version of the data files, if it is not the default
    compression               the compression of all columns
    <column>.<option>         how a column is stored; see column_options.py
    partition-fields          the fields of PARTITIONED BY; see `table.format.partitions`
    anything else             a setting of the table

Other names that resemble one of these are refused. So are properties of Delta and Iceberg that require
something that a Lance table does not do. Properties that only tune their files have no effect, and cause a
warning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_lance.errors import OptionError
from spark_lance.spark.options.column_options import COLUMN_OPTIONS, column_option
from spark_lance.spark.options.foreign_options import close_name, close_suffix
from spark_lance.table.format.partitions import PARTITION_FIELDS
from spark_lance.table.versions.ages import parse_duration

PRIMARY_KEY = "primary_key"
# The order of rows in files, whether writes distribute rows by this order ("range"), the clustering columns
# of OPTIMIZE t FULL, and the columns that identify rows in change logs.
SORT_ORDER = "sort-order"
DISTRIBUTION = "write.distribution-mode"
CLUSTERING = "clustering-columns"
IDENTIFIERS = "identifier-fields"
# An item of a list of names or sort keys.
_ITEM = re.compile(r"(?:`(?:[^`]|``)*`|[^,])+")
# Options of a new table, next to the options of its columns.
TABLE_OPTIONS = frozenset({"compression", "enable_stable_row_ids", "data_storage_version"})

_NAMES = {name: name for name in (PRIMARY_KEY, *sorted(TABLE_OPTIONS))}
_SUFFIXES = tuple(f".{option.name}" for option in COLUMN_OPTIONS)
# Settings that other parts of the package read. They resemble no option.
_SETTINGS = ("lance.auto_cleanup.", "lance.compaction.")


def split_names(text: str) -> list[str]:
    """Split a comma-separated list of names or sort keys. Backticks stay."""
    return [item.strip() for item in _ITEM.findall(text) if item.strip()]


def join_names(names: Iterable[str]) -> str:
    """Join column names to a comma-separated list, with backticks where a sort key needs them."""
    return ", ".join(
        name if re.fullmatch(r"\w+", name) else "`{}`".format(name.replace("`", "``")) for name in names
    )


def clustering_columns(config: Mapping[str, str]) -> list[str]:
    """Return the columns of CLUSTER BY in a table's config, as sort keys."""
    return split_names(config.get(CLUSTERING, ""))


def is_fixed(name: str) -> bool:
    """Return whether only CREATE TABLE can set a property."""
    return name == PRIMARY_KEY or name in TABLE_OPTIONS or column_option(name.lower()) is not None


@dataclass(frozen=True)
class _ValueForm:
    """The allowed values of a property: their description for errors, and their pattern."""

    description: str
    pattern: re.Pattern[str]


_ROW_TRACKING, _CHANGE_FEED = "delta.enableRowTracking", "delta.enableChangeDataFeed"
_BOOLEAN = _ValueForm("true or false", re.compile("true|false", re.IGNORECASE))
_NUMBER = _ValueForm("a number", re.compile("[0-9]{1,18}"))
# Properties of Delta and Iceberg that have an effect here -> the form of their values; None for durations.
_EFFECTIVE: dict[str, _ValueForm | None] = {
    **dict.fromkeys(("delta.appendOnly", "appendOnly", "write.wap.enabled", "gc.enabled"), _BOOLEAN),
    **dict.fromkeys((_ROW_TRACKING, _CHANGE_FEED), _BOOLEAN),
    DISTRIBUTION: _ValueForm("none, hash or range", re.compile("none|hash|range")),
    **dict.fromkeys(("delta.logRetentionDuration", "logRetentionDuration")),
    **dict.fromkeys(("delta.deletedFileRetentionDuration", "deletedFileRetentionDuration")),
    "history.expire.max-snapshot-age-ms": _NUMBER,
    "history.expire.min-snapshots-to-keep": _NUMBER,
    "history.expire.max-ref-age-ms": _NUMBER,
}
# Properties that require something that a Lance table does not do -> a pattern of refused values, and advice.
_OTHER_READERS = (
    "Lance tables have no metadata of other formats: write CREATE TABLE other USING iceberg AS SELECT * "
    "FROM t"
)
_FOLDER = "a Lance table has its files in one folder: CREATE TABLE lance.`/path` (...) names another one"
_FILES = "data files are Lance files: leave it out"
_ISOLATION = "leave it out: only changes of the same rows are conflicts"
_REFUSED = {
    "delta.universalFormat.enabledFormats": (".+", _OTHER_READERS),
    "delta.enableIcebergCompatV1": ("true", _OTHER_READERS),
    "delta.enableIcebergCompatV2": ("true", _OTHER_READERS),
    "delta.isolationLevel": ("serializable", _ISOLATION),
    "delta.setTransactionRetentionDuration": (".*", "set 'spark_lance.transactions.max_age' = '30days'"),
    "write.format.default": ("(?!lance$).*", _FILES),
    "write.delete.format.default": ("(?!lance$).*", _FILES),
    "write.data.path": (".*", _FOLDER),
    "write.folder-storage.path": (".*", _FOLDER),
    "write.metadata.path": (".*", _FOLDER),
    "write.object-storage.path": (".*", _FOLDER),
    "write.location-provider.impl": (".*", _FOLDER),
    "write.delete.isolation-level": ("serializable", _ISOLATION),
    "write.update.isolation-level": ("serializable", _ISOLATION),
    "write.merge.isolation-level": ("serializable", _ISOLATION),
    "encryption.key-id": (".*", "Lance does not encrypt files: leave it out, and let the store encrypt them"),
}
# Properties that tune files, statistics or commits of the other format.
_WITHOUT_EFFECT = (
    r"format-version|(?:commit|read|compatibility|engine)\..*|identifier-fields\.rely"
    r"|write\.(?:parquet|orc|avro|delete|update|merge|metadata|manifest|object-storage|spark|summary)\..*"
    r"|write\.(?:target-file-size-bytes|upsert\.enabled)"
    r"|delta\.(?:feature\..*|min(?:Reader|Writer)Version|ignoreProtocolDefaults|sampleRetentionDuration"
    r"|checkpoint(?:RetentionDuration|Interval|Policy|\.writeStatsAs(?:Json|Struct))|autoOptimize(?:\..*)?"
    r"|enable(?:ExpiredLogCleanup|FullRetentionRollback|InCommitTimestamps|DeletionVectors|TypeWidening"
    r"|VariantShredding)"
    r"|dropFeatureTruncateHistory\.retentionDuration|randomizeFilePrefixes|randomPrefixLength|enableMaterializePartitionColumnsFeature|writePartitionColumnsToParquet"
    r"|parquet\..*|dataSkipping(?:NumIndexedCols|StatsColumns|StringPrefixLength)|columnMapping\.(?:mode|maxColumnId)"
    r"|inCommitTimestampEnablement(?:Version|Timestamp)|requireCheckpointProtectionBeforeVersion"
    r"|targetFileSize|tuneFileSizesForRewrites|compatibility\..*)"
)
_FOREIGN_PREFIXES = ("delta.", "write.", "history.expire.", "gc.")
_CANONICAL = {name.lower(): name for name in (*_EFFECTIVE, *_REFUSED)}
logger = logging.getLogger(__name__)


def property_advice(key: str, value: str) -> str | None:
    """Return the error for an option that is a property of Delta or Iceberg; None for other options.

    Args:
        key: the option's name, in any case.
        value: the option's value.
    """
    if not key.lower().startswith(_FOREIGN_PREFIXES):
        return None
    name = _CANONICAL.get(key.lower(), key)
    return (
        f"option {name!r} is a table property: write df.writeTo(table).tableProperty({name!r}, {value!r})"
        f".create(), or ALTER TABLE t SET TBLPROPERTIES ({name!r} = {value!r})"
    )


def is_row_tracking(name: str, value: str) -> bool:
    """Return whether a property turns on Delta's row tracking."""
    return name == _ROW_TRACKING and value.strip().lower() == "true"


def needs_stable_row_ids(properties: Mapping[str, str]) -> bool:
    """Return whether properties of a new table need stable row ids: Delta's row tracking or change feed."""
    return any(properties.get(name, "").strip().lower() == "true" for name in (_ROW_TRACKING, _CHANGE_FEED))


def check_setting(name: str, value: str | None = None) -> None:
    """Check a setting of a table.

    Raises:
        OptionError: the name resembles a property with an effect, or a Lance table cannot do what the value
            requires. The message says what to write.
    """
    if is_fixed(name) or name.startswith(_SETTINGS):
        return
    if name == PARTITION_FIELDS:
        raise OptionError(
            f"property {name!r} is set by PARTITIONED BY: write CREATE TABLE ... PARTITIONED BY (column), or "
            "ALTER TABLE ... ADD PARTITION FIELD column"
        )
    if _check_foreign(name, value):
        return
    suggestion = close_name(name, _NAMES) or close_suffix(name.lower(), _SUFFIXES)
    if suggestion is not None:
        raise OptionError(f"unknown table property {name!r}: did you mean {suggestion!r}?")


def _check_foreign(name: str, value: str | None) -> bool:
    """Check a property of Delta or Iceberg, and return whether the name is such a property."""
    canonical = _CANONICAL.get(name.lower(), name)
    if canonical != name:
        raise OptionError(f"unknown table property {name!r}: did you mean {canonical!r}?")
    if name in _REFUSED:
        pattern, remedy = _REFUSED[name]
        if value is not None and re.fullmatch(pattern, value.strip(), re.IGNORECASE | re.DOTALL):
            raise OptionError(f"table property {name} = {value!r} has no effect on Lance tables: {remedy}")
        return True
    if name in _EFFECTIVE:
        form = _EFFECTIVE[name]
        if value is not None and form is None:
            _check_duration(name, value)
        elif value is not None and form is not None and not form.pattern.fullmatch(value.strip()):
            raise OptionError(f"table property {name} must be {form.description}, not {value!r}")
        return True
    if re.fullmatch(_WITHOUT_EFFECT, name):
        if value is not None:
            logger.warning("table property %s has no effect on Lance tables", name)
        return True
    if name.lower().startswith(_FOREIGN_PREFIXES):
        close = close_name(name, {key: key for key in _EFFECTIVE})
        remedy = f"did you mean {close!r}?" if close else "use another prefix for properties of your own"
        raise OptionError(f"unknown table property {name!r}: {remedy}")
    return False


def _check_duration(name: str, value: str) -> None:
    try:
        parse_duration(value.lower().replace("interval", " ").strip())
    except OptionError as error:
        raise OptionError(f"table property {name}: {error}") from None
