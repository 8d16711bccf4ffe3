"""How young a version may be that a vacuum deletes.

Readers pin a version when they are planned and open its files later: a query that runs, a DataFrame that was
made and not yet collected, a stream between two micro-batches. Deleting versions younger than the longest of
them breaks them, and never the newest version. Hence a guard: 24 hours, or more if the table's config says
so.

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
# Iceberg's property of tables that nothing is deleted from.
_DELETION = "gc.enabled"
# Iceberg's age of versions that go, where a table says only how many stay.
_ICEBERG_AGE = timedelta(days=5)
_GUARD = timedelta(hours=24)
_RETENTION = tuple(
    f"{prefix}{name}"
    for prefix in ("delta.", "")
    for name in ("deletedFileRetentionDuration", "logRetentionDuration")
)


def check_deletion(manifest: Manifest) -> None:
    """Refuse to delete files of a table whose property `gc.enabled` is false.

    Raises:
        OptionError: it is.
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
        return _GUARD
    try:
        return max(_GUARD, parse_duration(text))
    except OptionError as error:
        raise OptionError(f"config {MIN_RETENTION} of the table: {error}") from None


def expiry_setting(manifest: Manifest, name: str) -> int | None:
    """Return the number that one of Iceberg's properties of a table has, None without it.

    Raises:
        OptionError: it is not a number.
    """
    text = manifest.config.get(name)
    if text is None:
        return None
    if not (text.strip().isascii() and text.strip().isdigit()):
        raise OptionError(f"table property {name} must be a number, not {text!r}")
    return int(text)


def table_retention(manifest: Manifest) -> tuple[timedelta | None, int | None]:
    """Return the age at which a table's versions go, and how many stay; None for what no property says.

    The properties are Delta's and Iceberg's; the longest age counts.

    Raises:
        OptionError: the table's config has a value that is not a duration or a number.
    """
    ages = []
    age_ms = expiry_setting(manifest, MAX_SNAPSHOT_AGE)
    if age_ms is not None:
        ages.append(parse_duration(f"{age_ms} ms"))
    for key in _RETENTION:
        text = manifest.config.get(key)
        if text is not None:
            try:
                ages.append(parse_duration(text.lower().replace("interval", " ").strip()))
            except OptionError as error:
                raise OptionError(f"property {key} of the table: {error}") from None
    # Older versions need both, their files and their place in the history.
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
    """Return the age above which versions are removed: `age`, or the guard if versions are only counted.

    Args:
        manifest: a version of the table.
        age: the requested age; None if the caller gave none.
        by_number: whether the caller counts the versions that stay.
        allow_short: whether versions younger than the guard may be removed.
        source, remedy: the request, and the option that allows it, in the words of the caller.

    Raises:
        OptionError: the age is below the guard, and that is not allowed.
    """
    if allow_short:
        return age
    least = min_retention(manifest)
    if age is None:
        return least if by_number else None
    if age < least:
        raise OptionError(
            f"{source} is less than the {least / timedelta(hours=1):g} hours that versions are kept for "
            "readers: running queries, streams and DataFrames that were made before would lose their files. "
            f"If there are none, pass {remedy}"
        )
    return age
