"""Which engines can read and write a table, as far as that is known.

Feature flags decide: a program that does not know a flag of a table must not use the table (table format,
feature flags). Its data files must also be of a version that the engine reads. The rows were found by
experiment, or by reading the engine's sources; what was not examined is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_lance.file.version import FileVersion
from spark_lance.table.features import FEATURES, feature_names

__all__ = ["ENGINES", "Engine", "Verdict", "judge"]

_FLAGS_OF_30 = 1 | 2 | 4 | 8
_FLAGS_OF_38 = _FLAGS_OF_30 | 16
_FLAGS_OF_2025 = _FLAGS_OF_38 | 32
_FLAGS_OF_14 = _FLAGS_OF_2025 | 128 | 256 | 1024 | 2048 | 16384 | 32768


@dataclass(frozen=True)
class Engine:
    """The features that one engine supports.

    Attributes:
        name: the engine.
        reads, writes: the feature flags with which it reads and writes a table.
        read_versions, written_versions: the versions of data files.
        flags_known, versions_known: whether unknown flags and versions are refused; if not, it
            is not known whether newer releases take it.
        note: what else is known.
    """

    name: str
    reads: int
    writes: int
    read_versions: frozenset[str]
    written_versions: frozenset[str]
    flags_known: bool = True
    versions_known: bool = True
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """Whether an engine can read or write a table: "yes", "no" or "unknown", and why."""

    engine: str
    read: str
    write: str
    reason: str


ENGINES = (
    Engine(
        "spark_lance (this package)",
        sum(feature.bit for feature in FEATURES if feature.reads),
        sum(feature.bit for feature in FEATURES if feature.writes),
        frozenset(version.text for version in FileVersion),
        frozenset(version.text for version in FileVersion if version.writable),
    ),
    Engine(
        "pylance 14",
        _FLAGS_OF_14,
        _FLAGS_OF_14,
        frozenset({"0.1", "2.0", "2.1", "2.2", "2.3"}),
        frozenset({"0.1", "2.0", "2.1", "2.2", "2.3"}),
    ),
    Engine(
        "pylance 4 to 8",
        _FLAGS_OF_2025,
        _FLAGS_OF_2025,
        frozenset({"0.1", "2.0", "2.1", "2.2"}),
        frozenset({"0.1", "2.0", "2.1", "2.2"}),
    ),
    Engine(
        "pylance 1 to 2",
        _FLAGS_OF_2025,
        _FLAGS_OF_2025,
        frozenset({"0.1", "2.0", "2.1"}),
        frozenset({"0.1", "2.0", "2.1"}),
    ),
    Engine(
        "pylance 0.38 to 0.39",
        _FLAGS_OF_38,
        _FLAGS_OF_38,
        frozenset({"0.1", "2.0", "2.1"}),
        frozenset({"0.1", "2.0", "2.1"}),
    ),
    Engine(
        "pylance 0.30",
        _FLAGS_OF_30,
        _FLAGS_OF_30,
        frozenset({"0.1", "2.0"}),
        frozenset({"0.1", "2.0"}),
    ),
    Engine(
        "lance-spark",
        _FLAGS_OF_2025,
        _FLAGS_OF_2025,
        frozenset({"2.0", "2.1"}),
        frozenset({"2.0", "2.1"}),
        flags_known=False,
        versions_known=False,
        note="the Lance library inside it decides, and newer releases have newer ones",
    ),
)


def judge(engine: Engine, reader_flags: int, writer_flags: int, versions: frozenset[str]) -> Verdict:
    """Return whether an engine can read and write a table.

    Args:
        engine: a row of `ENGINES`.
        reader_flags, writer_flags: the feature flags of the table.
        versions: the versions of its data files.
    """
    unread = reader_flags & ~engine.reads
    unwritten = (reader_flags | writer_flags) & ~engine.writes
    old = versions - engine.read_versions
    fixed = versions - engine.written_versions
    reasons = [f"{name}: not for reading" for name in feature_names(unread)]
    reasons += [f"{name}: not for writing" for name in feature_names(unwritten & ~unread)]
    reasons += [f"files of version {version}: not read{_remedy(engine)}" for version in sorted(old)]
    reasons += [f"files of version {version}: not written" for version in sorted(fixed - old)]
    if reasons and engine.note:
        reasons.append(engine.note)
    return Verdict(
        engine.name,
        _answer(engine, bool(unread), bool(old)),
        _answer(engine, bool(unread or unwritten), bool(old or fixed)),
        "; ".join(reasons),
    )


def _remedy(engine: Engine) -> str:
    """Name the version of files to ask for when a table is to be made for an engine."""
    newest = max(engine.read_versions & engine.written_versions)
    return f" (those of a table made with data_storage_version={newest} are)"


def _answer(engine: Engine, new_flags: bool, new_versions: bool) -> str:
    """Return whether it works, given what the table has that the engine's row lacks."""
    if (new_flags and engine.flags_known) or (new_versions and engine.versions_known):
        return "no"
    return "unknown" if new_flags or new_versions else "yes"
