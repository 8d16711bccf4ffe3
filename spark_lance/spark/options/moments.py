"""Times that users write without a zone: in Spark they are in the session's zone."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from spark_lance.errors import OptionError

__all__ = ["SESSION_ZONE", "in_zone", "parse_zone"]

# Spark's setting.
SESSION_ZONE = "spark.sql.session.timeZone"
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?", re.ASCII)


def parse_zone(text: str) -> tzinfo:
    """Return a time zone from a name of Spark's: `Europe/Berlin`, `UTC`, `+02:00`, `GMT+2`.

    Raises:
        OptionError: the zone is unknown.
    """
    name = text.strip()
    if name.upper() in ("Z", "UTC", "GMT", "UT"):
        return timezone.utc
    if (match := _OFFSET.fullmatch(name)) is not None:
        hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
        offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if offset <= timedelta(hours=18):
            return timezone(-offset if match[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # an unknown name is a KeyError
        raise _unknown(text) from error


def _unknown(text: str) -> OptionError:
    return OptionError(
        f"time zone {text!r} is unknown: write a name such as Europe/Berlin, or an offset such as +01:00"
    )


def in_zone(moment: datetime | str, zone: str | None) -> datetime:
    """Return a time with a zone; a time without one is read in `zone`.

    Args:
        moment: a time, or its ISO 8601 text.
        zone: name of the zone; None if it is not known.

    Raises:
        OptionError: the text is not a time, the zone is unknown, or there is none.
    """
    # Spark imports the options in each session of the machine; only a time needs the table layer.
    from spark_lance.table.versions.resolve import parse_moment

    parsed = parse_moment(moment, None)
    if parsed.tzinfo is not None:
        return parsed
    if zone is None:
        raise OptionError(
            f"time '{parsed}' has no zone, and the session's zone is not known without "
            f"spark_lance.enable(spark): write it with its zone, such as {parsed.isoformat(sep=' ')}+00:00, "
            "or set option 'timeZone'"
        )
    return parsed.replace(tzinfo=parse_zone(zone))
