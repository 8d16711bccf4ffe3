"""Names that users cannot give: index entries of the format itself, and settings that this package keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_lance.errors import OptionError

__all__ = ["APPLIED_WRITES", "FRAGMENT_REUSE", "MEM_WAL", "check_settings", "visible_settings"]

# Moves of rows by compactions that did not rewrite indices.
FRAGMENT_REUSE = "__lance_frag_reuse"
# Rows that writers keep in memory, with a log.
MEM_WAL = "__lance_mem_wal"

# The setting that records the last write of every job. (`lance.` is reserved by the format.)
APPLIED_WRITES = "spark_lance.transactions"
_OWN = "spark_lance."
# Settings with our prefix that users may set.
_OFFERED = frozenset({"spark_lance.vacuum.min_retention"})


def visible_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a table without the ones that this package keeps for itself."""
    return {key: value for key, value in settings.items() if key.lower() != APPLIED_WRITES}


def check_settings(keys: Iterable[str]) -> None:
    """Refuse to set a setting that this package keeps for itself.

    Raises:
        OptionError: a key has the prefix `spark_lance.` and is not a setting for users.
    """
    for key in keys:
        if key.lower().startswith(_OWN) and key not in _OFFERED:
            raise OptionError(
                f"setting {key!r} is internal and cannot be set or removed; settings with the prefix {_OWN} "
                f"are: {', '.join(sorted(_OFFERED))}"
            )
