"""Automatic clean-up: after every n-th commit, as the table's config says.

    lance.auto_cleanup.interval          number of versions from one clean-up to the next
    lance.auto_cleanup.older_than        age of the versions that go: "14days", "36h", "1week 2days"
    lance.auto_cleanup.retain_versions   how many of the newest versions stay

The commit whose version is a multiple of the interval cleans up. It looks from the version before its own, so
that one stays, and so do tagged versions. Without `older_than` and `retain_versions` versions go after two
weeks. An age longer than the calendar means that no version is old enough. A clean-up that fails is logged:
the commit has succeeded. (Lance table format, auto clean-up.)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_lance.errors import OptionError
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.ages import parse_duration
from spark_lance.table.versions.cleanup import CleanupPolicy, cleanup

logger = logging.getLogger(__name__)

PREFIX = "lance.auto_cleanup."
# Versions, intervals and numbers of versions stay below it.
_LARGEST_NUMBER = 2**63 - 1
_DIGITS = 19
_OPTIONS = frozenset({"interval", "older_than_seconds", "retain_versions"})


def auto_cleanup_config(options: Mapping[str, object] | None) -> dict[str, str]:
    """Return the config of a new table that cleans up by itself.

    Args:
        options: `interval`, and `older_than_seconds` or `retain_versions` or both; None for no clean-up.

    Raises:
        OptionError: an option is missing, unknown or cannot be used.
    """
    if options is None:
        return {}
    if unknown := sorted(options.keys() - _OPTIONS):
        raise OptionError(f"auto_cleanup_options has no {unknown[0]!r}; there are {sorted(_OPTIONS)}")
    if len(options) < 2 or "interval" not in options:
        raise OptionError("auto_cleanup_options needs an interval, and what is old enough to go")
    for name, value in options.items():
        least = 0 if name == "older_than_seconds" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise OptionError(f"auto_cleanup_options: {name} must be a whole number from {least} on")
    config = {PREFIX + "interval": str(options["interval"])}
    if "older_than_seconds" in options:
        config[PREFIX + "older_than"] = f"{options['older_than_seconds']}s"
    if "retain_versions" in options:
        config[PREFIX + "retain_versions"] = str(options["retain_versions"])
    return config


def after_commit(table: TableRef, manifest: Manifest) -> None:
    """Clean up if it is the turn of the version that was just committed.

    Raises:
        OptionError: the table's config cannot be used.
        LanceError, OSError: the clean-up failed. The caller logs it (`only_logged`).
    """
    interval = _whole_number(manifest.config, "interval")
    if interval is None or manifest.version % interval:
        return
    age = manifest.config.get(PREFIX + "older_than")
    policy = CleanupPolicy(
        older_than=None if age is None else parse_duration(age),
        retain_versions=_whole_number(manifest.config, "retain_versions"),
        error_if_tagged=False,
    )
    stats = cleanup(table, manifest, policy, looked_from=manifest.version - 1)
    logger.info("version %d of %s: cleaned up %s", manifest.version, table.root, stats)


def _whole_number(config: Mapping[str, str], name: str) -> int | None:
    """Return a number from the config, None if it is not there; very large ones are cut."""
    text = config.get(PREFIX + name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not text.strip("0"):
        raise OptionError(f"{PREFIX}{name} is {text[:40]!r}, not a number of at least 1")
    digits = text.lstrip("0")
    return min(int(digits), _LARGEST_NUMBER) if len(digits) <= _DIGITS else _LARGEST_NUMBER
