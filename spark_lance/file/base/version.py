"""Versions of the data-file format and the numbers that name them.

One version has two pairs of numbers: the pair in the file's footer and the pair in the manifest's
`DataFile`. They differ only for 2.0, whose footer says (0, 3). Legacy files (0.1)
are numbered (0, 2) or lower.
"""

from __future__ import annotations

import enum

from spark_lance.errors import OptionError, OptionTypeError, UnsupportedFormatError


class FileVersion(enum.Enum):
    """A supported data file version: (text, footer numbers, manifest numbers)."""

    V0_1 = ("0.1", (0, 2), (0, 2))
    V2_0 = ("2.0", (0, 3), (2, 0))
    V2_1 = ("2.1", (2, 1), (2, 1))
    V2_2 = ("2.2", (2, 2), (2, 2))
    V2_3 = ("2.3", (2, 3), (2, 3))

    @property
    def text(self) -> str:
        """The name in a manifest's data format, e.g. "2.1"."""
        return self.value[0]

    @property
    def footer(self) -> tuple[int, int]:
        """(major, minor) as the file's footer has them."""
        return self.value[1]

    @property
    def manifest(self) -> tuple[int, int]:
        """(major, minor) as the manifest's DataFile has them."""
        return self.value[2]

    @property
    def writable(self) -> bool:
        """Whether we can write files of this version.

        Legacy files lose nulls, and the grammar of 2.3 is not final: both are read-only.
        """
        return self not in (FileVersion.V0_1, FileVersion.V2_3)

    @classmethod
    def parse(cls, name: str) -> FileVersion:
        """Return the version to write that is called `name` ("2.0", "2.1", "2.2", or the alias "stable").

        Raises:
            OptionError: the version does not exist.
            OptionTypeError: the version is not a text.
            UnsupportedFormatError: the version is known but cannot be written ("legacy", "2.3", "next").
        """
        if not isinstance(name, str):
            raise OptionTypeError(f"data_storage_version is a text, such as '2.2', not {name!r}")
        text = _ALIASES.get(name.strip().lower(), name.strip())
        choices = ", ".join(version.text for version in WRITABLE_VERSIONS)
        for version in WRITABLE_VERSIONS:
            if version.text == text:
                return version
        if text in _KNOWN_UNSUPPORTED:
            raise UnsupportedFormatError(
                f"data storage version {name!r} is not written here; use one of {choices}"
            )
        raise OptionError(f"unknown data storage version {name!r}; use one of {choices}")

    @classmethod
    def from_data_format(cls, name: str) -> FileVersion:
        """Return the version that a manifest's data format names, including "0.1" and "2.3".

        Raises:
            OptionError, UnsupportedFormatError: as for `parse`.
        """
        return next((version for version in cls if version.text == name), None) or cls.parse(name)

    @classmethod
    def from_footer(cls, major: int, minor: int) -> FileVersion:
        """Return the version whose footer carries these numbers.

        Raises:
            UnsupportedFormatError: the version is newer than 2.3.
        """
        if (major, minor) == (2, 0):
            return cls.V2_0
        for version in cls:
            if version.footer == (major, minor):
                return version
        if (major, minor) <= (0, 2):
            return cls.V0_1
        raise UnsupportedFormatError(
            f"Lance file version {major}.{minor} is not supported; 0.1 and 2.0 to 2.3 are"
        )

    @classmethod
    def from_manifest(cls, major: int, minor: int) -> FileVersion:
        """Return the version that a manifest's DataFile names by these numbers.

        Raises:
            UnsupportedFormatError: as for `from_footer`.
        """
        return cls.from_footer(major, minor)


DEFAULT_VERSION = FileVersion.V2_2
WRITABLE_VERSIONS = tuple(version for version in FileVersion if version.writable)

_ALIASES = {"stable": "2.2", "v2.0": "2.0", "v2.1": "2.1", "v2.2": "2.2"}
_KNOWN_UNSUPPORTED = {"legacy", "0.1", "2.3", "next"}
