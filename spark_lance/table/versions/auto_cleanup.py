"""Clean-up by itself: after every so many commits, as the table's config says.

    lance.auto_cleanup.interval          number of versions from one clean-up to the next
    lance.auto_cleanup.older_than        age of the versions that go: "14days", "36h", "1week 2days"
    lance.auto_cleanup.retain_versions   how many of the newest versions stay

The commit whose version is a multiple of the interval cleans up. It looks from the version before its own, so
that one stays, and so do tagged versions. Without `older_than` and `retain_versions` versions go after two
weeks. A clean-up that fails is logged: the commit has succeeded. (Lance table format, auto clean-up.)
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import timedelta

from spark_lance.errors import LanceError, OptionError
from spark_lance.io.store import Store
from spark_lance.table.manifest import Manifest
from spark_lance.table.versions.cleanup import CleanupPolicy, cleanup

__all__ = ["after_commit", "auto_cleanup_config", "parse_duration"]

logger = logging.getLogger(__name__)

PREFIX = "lance.auto_cleanup."
_PART = re.compile(r"\s*([0-9]+)\s*([a-zA-Zµ]+)\s*", re.ASCII)
_UNITS = {
    # Finer than the times of versions.
    **dict.fromkeys(("nanos", "nsec", "ns"), timedelta(0)),
    **dict.fromkeys(("usec", "us", "µs"), timedelta(microseconds=1)),
    **dict.fromkeys(("millis", "msec", "ms"), timedelta(milliseconds=1)),
    **dict.fromkeys(("seconds", "second", "secs", "sec", "s"), timedelta(seconds=1)),
    **dict.fromkeys(("minutes", "minute", "mins", "min", "m"), timedelta(minutes=1)),
    **dict.fromkeys(("hours", "hour", "hrs", "hr", "h"), timedelta(hours=1)),
    **dict.fromkeys(("days", "day", "d"), timedelta(days=1)),
    **dict.fromkeys(("weeks", "week", "wks", "wk", "w"), timedelta(weeks=1)),
    **dict.fromkeys(("months", "month", "M"), timedelta(days=30.44)),
    **dict.fromkeys(("years", "year", "yrs", "yr", "y"), timedelta(days=365.25)),
}
_OPTIONS = frozenset({"interval", "older_than_seconds", "retain_versions"})


def auto_cleanup_config(options: Mapping[str, int] | None) -> dict[str, str]:
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
    if options.get("interval", 0) < 1 or len(options) < 2:
        raise OptionError("auto_cleanup_options needs an interval, and what is old enough to go")
    config = {PREFIX + "interval": str(options["interval"])}
    if "older_than_seconds" in options:
        config[PREFIX + "older_than"] = f"{options['older_than_seconds']}s"
    if "retain_versions" in options:
        config[PREFIX + "retain_versions"] = str(options["retain_versions"])
    return config


def after_commit(store: Store, root: str, manifest: Manifest) -> None:
    """Clean up if it is the turn of the version that was just committed; a failure is logged."""
    try:
        interval = _whole_number(manifest.config, "interval")
        if interval is None or manifest.version % interval:
            return
        age = manifest.config.get(PREFIX + "older_than")
        policy = CleanupPolicy(
            older_than=None if age is None else parse_duration(age),
            retain_versions=_whole_number(manifest.config, "retain_versions"),
            error_if_tagged=False,
        )
        stats = cleanup(store, root, manifest, policy, looked_from=manifest.version - 1)
        logger.info("version %d of %s: cleaned up %s", manifest.version, root, stats)
    except (LanceError, OSError) as error:
        logger.warning("version %d of %s was committed, not cleaned up: %s", manifest.version, root, error)


def parse_duration(text: str) -> timedelta:
    """Return the duration that a text such as "14days" or "1h 30min" names.

    Raises:
        OptionError: it names none.
    """
    position, total = 0, timedelta(0)
    while position < len(text) or not position:
        part = _PART.match(text, position)
        if part is None or part[2] not in _UNITS:
            raise OptionError(f"{text!r} is no duration: write one like 14days or 1h 30min")
        try:
            total += int(part[1]) * _UNITS[part[2]]
        except OverflowError as error:
            raise OptionError(f"{text!r} is too long a duration") from error
        position = part.end()
    return total


def _whole_number(config: Mapping[str, str], name: str) -> int | None:
    """Return a number from the config, None if it is not there."""
    text = config.get(PREFIX + name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not int(text):
        raise OptionError(f"{PREFIX}{name} is {text!r}, not a number of at least 1")
    return int(text)
