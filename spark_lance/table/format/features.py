"""Feature flags: the features that readers of a manifest, and writers of the next version, must support.

A manifest field_names two 64-bit words. An unknown or unsupported bit in the reader word forbids reading.
Such a bit in the writer word forbids only writing. Every commit computes both words from the content, except
the sticky flags, which stay set once they are set. (Lance table format, feature flags.)

`FragmentFacts` summarizes all fragments of a version in one pass. A table may have ten thousand fragments,
and a commit that adds one checks all of them several times: whether the ids are distinct, the files have one
version, and all rows are counted. Each pass creates a Python object per fragment. So an append only adds the
facts of its new fragments to the facts of the previous version.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import DecodeError

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.proto import table_pb2


class FragmentFacts(NamedTuple):
    """A summary of several fragments.

    Attributes:
        highest: the highest id; -1 without fragments.
        lowest: the id of the first fragment; 0 without fragments.
        is_rising: whether each id is greater than the previous one.
        parts: names of the protobuf fields that any fragment field_names.
        versions: major and minor file versions of the data files.
        has_row_ids: whether all fragments have stable row ids.
        has_pairs: whether any fragment field_names more than one data file.
        is_counted: whether all fragments have their numbers of rows and of deleted rows.
    """

    highest: int = -1
    lowest: int = 0
    is_rising: bool = True
    parts: frozenset[str] = frozenset()
    versions: frozenset[tuple[int, int]] = frozenset()
    has_row_ids: bool = True
    has_pairs: bool = False
    is_counted: bool = True

    @classmethod
    def of(cls, fragments: Iterable[table_pb2.DataFragment]) -> FragmentFacts:
        """Return the facts of fragments in the given order."""
        highest, last, lowest = -1, -1, None
        is_rising = has_row_ids = is_counted = True
        has_pairs = False
        parts: set[str] = set()
        versions: set[tuple[int, int]] = set()
        for fragment in fragments:
            number = fragment.id
            lowest = number if lowest is None else lowest
            is_rising = is_rising and number > last
            highest, last = max(highest, number), number
            field_names = {field.name for field, _ in fragment.ListFields()}
            parts |= field_names
            files = fragment.files
            versions.update((file.file_major_version, file.file_minor_version) for file in files)
            has_pairs = has_pairs or len(files) > 1
            has_row_ids = has_row_ids and fragment.WhichOneof("row_id_sequence") is not None
            if "physical_rows" not in field_names:
                is_counted = is_counted and not files
            elif "deletion_file" in field_names:
                is_counted = is_counted and bool(fragment.deletion_file.num_deleted_rows)
        return cls(
            highest,
            lowest or 0,
            is_rising,
            frozenset(parts),
            frozenset(versions),
            has_row_ids,
            has_pairs,
            is_counted,
        )

    def and_then(self, more: FragmentFacts) -> FragmentFacts:
        """Return the facts of these fragments followed by others."""
        if more.highest < 0:
            return self
        if self.highest < 0:
            return more
        return FragmentFacts(
            max(self.highest, more.highest),
            self.lowest,
            self.is_rising and more.is_rising and more.lowest > self.highest,
            self.parts | more.parts,
            self.versions | more.versions,
            self.has_row_ids and more.has_row_ids,
            self.has_pairs or more.has_pairs,
            self.is_counted and more.is_counted,
        )


DELETION_FILES = 1
STABLE_ROW_IDS = 2
RETIRED_V2_MARK = 4
TABLE_CONFIG = 8
BASE_PATHS = 16
DATA_OVERLAYS = 64
COVERING_INDICES = 128
MIXED_FILE_VERSIONS = 256
FRAGMENT_REUSE_HISTORY = 1024
SPILLED_LINEAGE = 2048
MANAGED_BLOBS = 16384
FIELD_ID_MARK = 32768
WRITE_SEEDS = 65536

_LEGACY = "0.1"

# Optional part of a fragment -> its flag.
_PART_FLAGS = {
    "deletion_file": DELETION_FILES,
    "overlays": DATA_OVERLAYS,
    "column_row_ids": SPILLED_LINEAGE,
    "column_last_updated_at_versions": SPILLED_LINEAGE,
    "column_created_at_versions": SPILLED_LINEAGE,
}

STICKY = MIXED_FILE_VERSIONS | FRAGMENT_REUSE_HISTORY | MANAGED_BLOBS


class FlagWords(enum.Enum):
    """The words in which a flag may be set."""

    ANY = "any"
    BOTH = "both or neither"
    WRITER = "the writer word only"


@dataclass(frozen=True)
class Feature:
    """One flag: its bit value, its name in messages, and whether this release reads and writes it."""

    bit: int
    name: str
    reads: bool
    writes: bool
    words: FlagWords = FlagWords.ANY


FEATURES = (
    Feature(DELETION_FILES, "deletion files", reads=True, writes=True),
    Feature(STABLE_ROW_IDS, "stable row ids", reads=True, writes=True),
    Feature(RETIRED_V2_MARK, "the retired v2-format marker", reads=True, writes=True),
    Feature(TABLE_CONFIG, "table config", reads=True, writes=True),
    Feature(BASE_PATHS, "base paths (shallow clones and branches)", reads=True, writes=True),
    Feature(32, "inline transactions only", reads=True, writes=True),
    Feature(DATA_OVERLAYS, "data overlays", reads=False, writes=False),
    Feature(COVERING_INDICES, "covering indexes", reads=True, writes=True),
    Feature(MIXED_FILE_VERSIONS, "mixed data file versions", reads=True, writes=True, words=FlagWords.BOTH),
    Feature(512, "fragment trees", reads=False, writes=False),
    Feature(FRAGMENT_REUSE_HISTORY, "fragment reuse history", reads=True, writes=True, words=FlagWords.BOTH),
    Feature(SPILLED_LINEAGE, "row lineage in data files", reads=True, writes=True),
    Feature(MANAGED_BLOBS, "managed blobs", reads=False, writes=False, words=FlagWords.BOTH),
    Feature(FIELD_ID_MARK, "never reused field ids", reads=True, writes=True, words=FlagWords.WRITER),
    Feature(WRITE_SEEDS, "zone write seeds", reads=False, writes=False, words=FlagWords.BOTH),
)


def check_readable(message: table_pb2.Manifest, path: str, facts: FragmentFacts | None = None) -> None:
    """Refuse a manifest that this release cannot read.

    Args:
        facts: the facts of its fragments, if known.

    Raises:
        UnsupportedFormatError: a flag of the reader word, or content without its flag, is not supported.
        FormatError: the flags contradict each other or the content.
    """
    reader = message.reader_feature_flags
    unsupported = _unsupported_names(reader, [f for f in FEATURES if f.reads])
    if unsupported:
        raise UnsupportedFormatError(f"reading this table needs {', '.join(unsupported)}", path=path)
    _check_flag_words(message, path)
    facts = facts or FragmentFacts.of(message.fragments)
    if reader & STABLE_ROW_IDS and not facts.has_row_ids:
        raise FormatError("a table with stable row ids has a fragment without them", path=path)
    # Lance 0.16 recorded version 0.1 for all tables, so readers use the versions of the files.
    is_foreign = _has_other_version(message, facts)
    if not reader & MIXED_FILE_VERSIONS and message.data_format.version != _LEGACY and is_foreign:
        raise FormatError(
            f"a data file is not of the table's version {message.data_format.version}, "
            "and the flag for mixed versions is not set",
            path=path,
        )


def check_writable(message: table_pb2.Manifest, path: str, facts: FragmentFacts | None = None) -> None:
    """Refuse a readable manifest if this release cannot write the next version.

    Args:
        facts: the facts of its fragments, if known.

    Raises:
        UnsupportedFormatError: a flag of either word is not supported for writing.
    """
    flags = message.reader_feature_flags | message.writer_feature_flags
    unsupported = _unsupported_names(flags, [f for f in FEATURES if f.writes])
    if _is_legacy(message, facts):
        unsupported.append("legacy (0.1) data files, which are only read; write to another location")
    if unsupported:
        raise UnsupportedFormatError(f"writing to this table needs {', '.join(unsupported)}", path=path)


def recompute(message: table_pb2.Manifest, index_section: bytes, facts: FragmentFacts | None = None) -> None:
    """Set both flag words of a new manifest from its content; sticky flags are unchanged.

    Args:
        message: the manifest to be written; changed in place.
        index_section: its serialized IndexSection, empty if there is none.
        facts: the facts of its fragments, if known.
    """
    facts = facts or FragmentFacts.of(message.fragments)
    both = message.reader_feature_flags & (STICKY | STABLE_ROW_IDS)
    for name in facts.parts & _PART_FLAGS.keys():
        both |= _PART_FLAGS[name]
    if message.base_paths:
        both |= BASE_PATHS
    if _has_other_version(message, facts):
        both |= MIXED_FILE_VERSIONS
    if _has_covering_index(index_section):
        both |= COVERING_INDICES
    writer = both
    if message.config:
        writer |= TABLE_CONFIG
    if message.HasField("max_allocated_field_id"):
        writer |= FIELD_ID_MARK
    message.reader_feature_flags = both
    message.writer_feature_flags = writer


def feature_names(flags: int) -> tuple[str, ...]:
    """Return the names of the flags that are set in a word; `flag <bit value>` for unknown flags."""
    names = {feature.bit: feature.name for feature in FEATURES}
    bits = (1 << place for place in range(flags.bit_length()) if flags >> place & 1)
    return tuple(names.get(bit, f"flag {bit}") for bit in bits)


def _unsupported_names(flags: int, supported: list[Feature]) -> list[str]:
    """Return the names of the set flags that are not supported."""
    names = {feature.bit: feature.name for feature in FEATURES}
    for feature in supported:
        flags &= ~feature.bit
    bits = [1 << i for i in range(flags.bit_length()) if flags >> i & 1]
    return [f"{names[bit]} (flag {bit})" if bit in names else f"unknown feature flag {bit}" for bit in bits]


def _check_flag_words(message: table_pb2.Manifest, path: str) -> None:
    for feature in FEATURES:
        in_reader = bool(message.reader_feature_flags & feature.bit)
        in_writer = bool(message.writer_feature_flags & feature.bit)
        in_one_word = feature.words is FlagWords.BOTH and in_reader != in_writer
        misplaced = feature.words is FlagWords.WRITER and in_reader
        if in_one_word or misplaced:
            raise FormatError(
                f"corrupt feature flags: {feature.name} ({feature.bit}) must be in {feature.words.value}",
                path=path,
            )
    has_mark = bool(message.writer_feature_flags & FIELD_ID_MARK)
    if has_mark != message.HasField("max_allocated_field_id"):
        raise FormatError(
            f"corrupt feature flags: flag {FIELD_ID_MARK} and max_allocated_field_id must come together",
            path=path,
        )


def _has_other_version(message: table_pb2.Manifest, facts: FragmentFacts) -> bool:
    """Return whether a data file differs from the version in the manifest; False if it field_names none."""
    expected = message.data_format.version
    if not expected:
        return False
    return any(_version_text(major, minor) != expected for major, minor in facts.versions)


def _version_text(major: int, minor: int) -> str:
    # Version 2.0 is numbered 2.0 or, in footers, 0.3. Legacy files have 0.2 or lower.
    if (major, minor) <= (0, 2):
        return _LEGACY
    return "2.0" if (major, minor) == (0, 3) else f"{major}.{minor}"


def _is_legacy(message: table_pb2.Manifest, facts: FragmentFacts | None) -> bool:
    """Return whether a readable table field_names legacy files or writes them."""
    if message.data_format.version == _LEGACY:
        return True
    if message.data_format.version and not message.reader_feature_flags & MIXED_FILE_VERSIONS:
        return False
    facts = facts or FragmentFacts.of(message.fragments)
    return any(_version_text(major, minor) == _LEGACY for major, minor in facts.versions)


def _has_covering_index(index_section: bytes) -> bool:
    try:
        section = table_pb2.IndexSection.FromString(index_section)
    except DecodeError as error:
        raise FormatError(f"the index section cannot be decoded: {error}") from error
    return any(index.covering_fields for index in section.indices)
