"""The minimal age of versions that a vacuum deletes.

Readers pin a version when they are planned and open its files later: a running query, a DataFrame that is not
yet collected, a stream between two micro-batches. Deleting versions younger than the longest-running reader
breaks that reader, but never the newest version. So the minimal age is 24 hours, or more if the table's
config says so.

    spark_lance.vacuum.min_retention = "3days"
"""

from __future__ import annotations

from datetime import timedelta

from spark_lance.errors import OptionError
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.versions.ages import parse_duration

MIN_RETENTION = "spark_lance.vacuum.min_retention"
# Iceberg's properties; ages are in milliseconds.
MAX_SNAPSHOT_AGE = "history.expire.max-snapshot-age-ms"
MIN_SNAPSHOTS = "history.expire.min-snapshots-to-keep"
MAX_REF_AGE = "history.expire.max-ref-age-ms"
# Iceberg's property that disables all deletions of files.
_DELETION = "gc.enabled"
# Iceberg's maximal age of versions if a table sets only the number of versions to keep.
_ICEBERG_AGE = timedelta(days=5)
_MIN_AGE = timedelta(hours=24)
_DELTA_PROPERTIES = tuple(
    f"{prefix}{name}"
    for prefix in ("delta.", "")
    for name in ("deletedFileRetentionDuration", "logRetentionDuration")
)


def check_deletion(manifest: Manifest) -> None:
    """Check that the table property `gc.enabled` allows the deletion of files.

    Raises:
        OptionError: the property is false.
    """
    if manifest.config.get(_DELETION, "").strip().lower() == "false":
        raise OptionError(
            f"no file of the table may be deleted, as its property {_DELETION} is false: ALTER TABLE t UNSET "
            f"TBLPROPERTIES ('{_DELETION}') allows it"
        )


def min_retention(manifest: Manifest) -> timedelta:
    """Return the age below which no version of a table is deleted by default.

    Raises:
        OptionError: the table's config has a value that is not a duration.
    """
    text = manifest.config.get(MIN_RETENTION)
    if text is None:
        return _MIN_AGE
    try:
        return max(_MIN_AGE, parse_duration(text))
    except OptionError as error:
        raise OptionError(f"config {MIN_RETENTION} of the table: {error}") from None


def expiry_setting(manifest: Manifest, name: str) -> int | None:
    """Return the number in one of Iceberg's table properties; None if the property is not set.

    Raises:
        OptionError: the property is not a number.
    """
    text = manifest.config.get(name)
    if text is None:
        return None
    if not (text.strip().isascii() and text.strip().isdigit()):
        raise OptionError(f"table property {name} must be a number, not {text!r}")
    return int(text)


def table_retention(manifest: Manifest) -> tuple[timedelta | None, int | None]:
    """Return the maximal age of versions and the number of versions to keep, by the table's properties.

    The properties are Delta's and Iceberg's; the longest age wins. None if no property sets a value.

    Raises:
        OptionError: a property is not a duration or a number.
    """
    ages = []
    age_ms = expiry_setting(manifest, MAX_SNAPSHOT_AGE)
    if age_ms is not None:
        ages.append(parse_duration(f"{age_ms} ms"))
    for key in _DELTA_PROPERTIES:
        text = manifest.config.get(key)
        if text is not None:
            try:
                ages.append(parse_duration(text.lower().replace("interval", " ").strip()))
            except OptionError as error:
                raise OptionError(f"property {key} of the table: {error}") from None
    # The longest age wins: reading an old version needs its files and its place in the history.
    count = expiry_setting(manifest, MIN_SNAPSHOTS)
    if count is not None and not ages:
        ages.append(_ICEBERG_AGE)
    return max(ages) if ages else None, None if count is None else max(1, count)


def guarded_age(
    manifest: Manifest,
    age: timedelta | None,
    by_number: bool,
    *,
    allow_short: bool,
    source: str,
    remedy: str,
) -> timedelta | None:
    """Return the age above which versions are deleted: `age`, or the minimal age if `by_number` is set.

    Args:
        manifest: a version of the table.
        age: the requested age; None if the caller sets no age.
        by_number: whether the caller sets the number of versions to keep.
        allow_short: whether versions younger than the minimal age may be deleted.
        source, remedy: the request, and the option that allows it, for the message.

    Raises:
        OptionError: the age is below the minimal age, and `allow_short` is false.
    """
    if allow_short:
        return age
    min_age = min_retention(manifest)
    if age is None:
        return min_age if by_number else None
    if age < min_age:
        raise OptionError(
            f"{source} is less than the {min_age / timedelta(hours=1):g} hours that versions are kept for "
            "readers: running queries, streams and DataFrames that were made before would lose their files. "
            f"If there are none, pass {remedy}"
        )
    return age
