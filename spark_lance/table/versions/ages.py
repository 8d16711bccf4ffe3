"""Parse ages of versions and files, such as "14days" or a number of hours.

Every age is limited to `LONGEST`, so that a time minus an age is always inside the calendar.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from spark_lance.errors import OptionError

_PART = re.compile(r"\s*([0-9]+)\s*([a-zA-Zµ]+)\s*", re.ASCII)
_UNITS = {
    # Shorter than the resolution of commit times.
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
# The maximum age: no version is older, and the calendar starts about 2,000 years ago.
LONGEST = timedelta(days=365_250)
_DIGITS = 19


def clamped_age(age: timedelta) -> timedelta:
    """Return an age limited to the range from 0 to `LONGEST`."""
    return min(max(age, timedelta(0)), LONGEST)


def age_of_hours(hours: float, name: str) -> timedelta:
    """Return an age in hours as a duration of at most `LONGEST`.

    Args:
        hours: the age.
        name: the name of the option, for errors.

    Raises:
        OptionError: the age is negative or not a number.
    """
    if math.isnan(hours) or hours < 0:
        raise OptionError(f"{name} must be 0 or more hours, not {hours}")
    return LONGEST if hours >= LONGEST / timedelta(hours=1) else timedelta(hours=hours)


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as "14days" or "1h 30min"; the result is at most `LONGEST`.

    Raises:
        OptionError: the text is not a duration.
    """
    position, total = 0, timedelta(0)
    while position < len(text) or not position:
        part = _PART.match(text, position)
        if part is None or part[2] not in _UNITS:
            raise OptionError(f"{text[:40]!r} is not a duration: write one like 14days or 1h 30min")
        total = min(LONGEST, total + _multiply(part[1], _UNITS[part[2]]))
        position = part.end()
    return total


def _multiply(digits: str, unit: timedelta) -> timedelta:
    """Return `digits` times a unit, at most `LONGEST`; there may be any number of digits."""
    digits = digits.lstrip("0")
    if not digits or not unit:
        return timedelta(0)
    if len(digits) > _DIGITS or int(digits) > LONGEST / unit:
        return LONGEST
    return int(digits) * unit
