"""Ages of versions and files: texts such as "14days", hours, and durations that callers pass.

Every age is cut to `LONGEST`, so that subtracting it from a time never leaves the calendar.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from spark_lance.errors import OptionError

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
# Longer ages are cut to this one: no version is older, and the calendar begins about 2,000 years ago.
LONGEST = timedelta(days=365_250)
_DIGITS = 19


def clamped_age(age: timedelta) -> timedelta:
    """Return an age that is neither negative nor longer than `LONGEST`."""
    return min(max(age, timedelta(0)), LONGEST)


def age_of_hours(hours: float, name: str) -> timedelta:
    """Return an age given in hours, `LONGEST` at most.

    Args:
        hours: the age.
        name: what the caller calls it, for errors.

    Raises:
        OptionError: it is negative or not a number.
    """
    if math.isnan(hours) or hours < 0:
        raise OptionError(f"{name} must be 0 or more hours, not {hours}")
    return LONGEST if hours >= LONGEST / timedelta(hours=1) else timedelta(hours=hours)


def parse_duration(text: str) -> timedelta:
    """Return the duration that a text such as "14days" or "1h 30min" names, `LONGEST` at most.

    Raises:
        OptionError: it names none.
    """
    position, total = 0, timedelta(0)
    while position < len(text) or not position:
        part = _PART.match(text, position)
        if part is None or part[2] not in _UNITS:
            raise OptionError(f"{text[:40]!r} is not a duration: write one like 14days or 1h 30min")
        total = min(LONGEST, total + _times(part[1], _UNITS[part[2]]))
        position = part.end()
    return total


def _times(digits: str, unit: timedelta) -> timedelta:
    """Return a number of units, `LONGEST` at most; numbers of any length are legal."""
    digits = digits.lstrip("0")
    if not digits or not unit:
        return timedelta(0)
    if len(digits) > _DIGITS or int(digits) > LONGEST / unit:
        return LONGEST
    return int(digits) * unit
