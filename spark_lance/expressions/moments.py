"""Times written as text, alike on every Python: 3.10 knows fewer forms of ISO 8601 than the later ones."""

from __future__ import annotations

import datetime
import re

_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)"
    r"(?:[ T](\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d+))?)?)?(?:([Zz])|([+-]\d\d)(?::?(\d\d))?)?)?",
    re.ASCII,
)


def parse_moment(text: str) -> datetime.datetime:
    """Return a time such as "2024-01-02 03:04:05.678Z"; what is finer than a microsecond is cut off.

    Args:
        text: a date, and a time of day down to hours at least, with an offset from UTC or none.

    Raises:
        ValueError: it is not such a text, or names a day or a time that does not exist.
    """
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return datetime.datetime.fromisoformat(text.strip())
    day, hour, minute, second, fraction, utc, offset_hour, offset_minute = match.groups()
    plain = f"{day}T{hour or '00'}:{minute or '00'}:{second or '00'}.{(fraction or '').ljust(6, '0')[:6]}"
    if utc:
        return datetime.datetime.fromisoformat(f"{plain}+00:00")
    offset = f"{offset_hour}:{offset_minute or '00'}" if offset_hour else ""
    return datetime.datetime.fromisoformat(plain + offset)
