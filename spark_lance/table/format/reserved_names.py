"""Reserved names: index entries of the format, and settings that this package manages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from spark_lance.errors import OptionError

# Records rows that were moved by compactions which did not rewrite indexes.
FRAGMENT_REUSE = "__lance_frag_reuse"
# Records rows that writers keep in memory, with a write-ahead log.
MEM_WAL = "__lance_mem_wal"

# The setting that records the last write of every job. (`lance.` is reserved by the format.)
APPLIED_WRITES = "spark_lance.transactions"
# The prefix of settings that are constraints; the name of the constraint follows.
CONSTRAINTS = "spark_lance.constraints."
# The prefix of settings with the next values of identity columns.
IDENTITY_VALUES = "spark_lance.identity."
_PREFIX = "spark_lance."
_DELTA_CONSTRAINTS = "delta.constraints."
# Settings with our prefix that users may set.
_MAX_JOBS, _MAX_AGE = f"{APPLIED_WRITES}.max_jobs", f"{APPLIED_WRITES}.max_age"
_MIN_RETENTION = "spark_lance.vacuum.min_retention"
# The syntax of durations; the code that uses a duration checks its units.
_DURATION = re.compile(r"(\s*[0-9]+\s*[a-zA-Zµ]+\s*){1,20}", re.ASCII)
_USER_SETTINGS = frozenset({_MAX_JOBS, _MAX_AGE, _MIN_RETENTION})


def visible_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a table without the internal settings of this package."""
    return {
        key: value
        for key, value in settings.items()
        if key.lower() != APPLIED_WRITES and not key.lower().startswith((CONSTRAINTS, IDENTITY_VALUES))
    }


def check_settings(settings: Iterable[str] | Mapping[str, str | None]) -> None:
    """Refuse internal settings of this package, and invalid values of its public settings.

    Args:
        settings: keys, or keys with their values; None removes a key.

    Raises:
        OptionError: a key has the prefix `spark_lance.` and is not a setting for users, or a value is
            invalid.
    """
    for key in settings:
        if key.lower().startswith((CONSTRAINTS, _DELTA_CONSTRAINTS)):
            name = key.rpartition(".")[2]
            raise OptionError(
                f"setting {key!r} is a constraint, and constraints are not set as properties: ALTER TABLE t "
                f"ADD CONSTRAINT {name} CHECK (condition), or LanceTable.addConstraint({name!r}, condition)"
            )
        if key.lower().startswith(_PREFIX) and key not in _USER_SETTINGS:
            raise OptionError(
                f"setting {key!r} is internal and cannot be set or removed; settings with the prefix "
                f"{_PREFIX} are: {', '.join(sorted(_USER_SETTINGS))}"
            )
        value = settings[key] if isinstance(settings, Mapping) else None
        if value is not None:
            _check_value(key, value)


def _check_value(key: str, value: str) -> None:
    if key == _MAX_JOBS and not (value.isascii() and value.isdigit() and len(value) < 10 and int(value)):
        raise OptionError(f"setting {key} must be a number from 1 on, not {value[:40]!r}")
    if key in (_MAX_AGE, _MIN_RETENTION) and not _DURATION.fullmatch(value):
        raise OptionError(f"setting {key} must be a duration such as 14days or 1h 30min, not {value[:40]!r}")
