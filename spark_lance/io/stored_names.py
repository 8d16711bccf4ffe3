"""Checks of names that were read from a file, before they are used in a path.

A manifest, transaction, index entry, WAL manifest, tag, branch, job record or list of tables names files. The
table may come from someone else, so such a name must not lead out of the directory that it is relative to:

    path        parts separated by '/': 0110ab.lance, sub/0110ab.lance
    name        one such part: _metadata.lance
    uri         a location of any kind: s3://bucket/t, /lake/t, ../t (base paths, external blobs)

The checks reject empty names and parts, '.' and '..' (also percent-encoded), absolute paths, schemes
("file:", "C:"), chains ("zip::s3:"), backslashes and control characters. `table/format/bases.py` decides
which locations a reader may follow.

`check_message` checks all names inside a protobuf message, and the numbers that are used as ids, versions and
sizes; `_FIELDS` lists the fields.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple
from urllib.parse import unquote

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from spark_lance.errors import FormatError

# Almost every name matches this and needs no further checks.
_PLAIN = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*", re.ASCII)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DOTS = frozenset({".", ".."})


def path_fault(path: str, *, is_key: bool = False) -> str | None:
    """Return why a path could lead out of the directory that it is relative to; None if it cannot.

    Args:
        path: the path.
        is_key: whether the path is the key of an object that Lance did not write. Keys may contain colons,
            empty parts and, except on Windows, backslashes.
    """
    if _PLAIN.fullmatch(path):
        return None
    if not path:
        return "it is empty"
    if _CONTROL.search(path):
        return "it contains a control character"
    if "\\" in path and not (is_key and os.sep == "/"):
        return "it contains a backslash"
    if path.startswith("/"):
        return "it is absolute"
    if (_SCHEME.match(path) or "::" in path) and not (is_key and os.sep == "/"):
        return "it begins with a scheme"
    for text in (path, unquote(path)):
        if _DOTS & set(text.split("/")):
            return "it contains '.' or '..' as a part"
    return "it contains an empty part" if "" in path.split("/") and not is_key else None


def uri_fault(uri: str) -> str | None:
    """Return why a URI is not a valid location; None if it is."""
    if not uri.strip():
        return "it is empty"
    if _CONTROL.search(uri):
        return "it contains a control character"
    scheme, separator, rest = uri.partition("://")
    if "::" in (scheme if separator else uri):
        return "it is a chain of schemes"
    local = not separator or scheme.lower() in ("file", "local")
    # Local paths are resolved before they are compared; a store or server may resolve '..' later.
    if not local and any(_DOTS & set(text.split("/")) for text in (rest, unquote(rest))):
        return "it contains '.' or '..' as a part"
    return None


def check_path(path: str, what: str, file: str | None = None) -> str:
    """Return a path after checking that it stays below its directory.

    Args:
        path: relative path.
        what: name of the field that contains the path, for the message.
        file: object that the path was read from.

    Raises:
        FormatError: the path could lead out of its directory.
    """
    return path if (fault := path_fault(path)) is None else _refuse(path, what, fault, file)


def check_key(key: str, what: str, file: str | None = None) -> str:
    """Return the key of an object that Lance did not write, after the checks of `check_path`."""
    return key if (fault := path_fault(key, is_key=True)) is None else _refuse(key, what, fault, file)


def check_name(name: str, what: str, file: str | None = None) -> str:
    """Return a name without '/' after checking it; arguments and errors as for `check_path`."""
    fault = "it contains a slash" if "/" in name else path_fault(name)
    return name if fault is None else _refuse(name, what, fault, file)


def check_uri(uri: str, what: str, file: str | None = None) -> str:
    """Return a location after checking it; arguments and errors as for `check_path`."""
    return uri if (fault := uri_fault(uri)) is None else _refuse(uri, what, fault, file)


def _optional(check: Callable[[str, str, str | None], str]) -> Callable[[str, str, str | None], str]:
    return lambda text, what, file: check(text, what, file) if text else text


def _refuse(text: str, what: str, fault: str, file: str | None) -> str:
    raise FormatError(f"{what} {text!r} is not allowed: {fault}", path=file)


def _check_uuid(value: bytes, what: str, file: str | None) -> None:
    if len(value) != 16:
        raise FormatError(f"{what} has {len(value)} bytes, a UUID has 16", path=file)


def _below(end: int) -> Callable[[int, str, str | None], None]:
    """Return a check that a number is below `end`. Negative numbers cannot occur: the fields are unsigned."""

    def check(value: int, what: str, file: str | None) -> None:
        if value >= end:
            raise FormatError(f"{what} {value} is not below {end}", path=file)

    return check


_BELOW_2_32, _BELOW_2_63 = _below(1 << 32), _below(1 << 63)


def _check_version(value: int, what: str, file: str | None) -> None:
    """Check that only a detached version, which is in a file named `d...`, has bit 63 set."""
    if file is None or not file.rpartition("/")[2].startswith("d"):
        _BELOW_2_63(value, what, file)


# Message and field -> the check of its value, and the name for errors.
_FIELDS: Mapping[str, tuple[Callable[..., object], str]] = {
    "spark_lance.table.DataFile.path": (check_path, "data file path"),
    "spark_lance.table.IndexFile.path": (check_path, "index file path"),
    "spark_lance.table.FragmentReuseIndexDetails.ExternalFile.path": (check_name, "fragment reuse file"),
    "spark_lance.table.BasePath.path": (check_uri, "base path"),
    "spark_lance.table.Manifest.transaction_file": (_optional(check_name), "transaction file"),
    "spark_lance.table.Manifest.branch": (_optional(check_path), "branch"),
    "spark_lance.table.IndexMetadata.uuid": (lambda uuid, *at: _check_uuid(uuid.uuid, *at), "index UUID"),
    "spark_lance.transaction.Transaction.Rewrite.RewrittenIndex.new_id": (
        lambda uuid, *at: _check_uuid(uuid.uuid, *at),
        "index UUID",
    ),
    "spark_lance.transaction.Transaction.uuid": (_optional(check_name), "transaction UUID"),
    "spark_lance.transaction.Transaction.Clone.branch_name": (_optional(check_path), "branch"),
    "spark_lance.transaction.Transaction.Clone.ref_path": (_optional(check_uri), "clone source"),
    "spark_lance.index.SsTable.path": (check_path, "SSTable path"),
    "spark_lance.table.DataFragment.id": (_BELOW_2_32, "fragment id"),
    "spark_lance.table.DataFragment.physical_rows": (_below((1 << 32) + 1), "physical rows"),
    "spark_lance.table.DataFile.file_size_bytes": (_BELOW_2_63, "file size"),
    "spark_lance.table.DeletionFile.num_deleted_rows": (_below((1 << 32) + 1), "deleted rows"),
    "spark_lance.table.FragmentReuseIndexDetails.FragmentDigest.id": (_BELOW_2_32, "fragment id"),
    "spark_lance.table.IndexFile.size_bytes": (_BELOW_2_63, "file size"),
    # Milliseconds until the year 10000.
    "spark_lance.table.IndexMetadata.created_at": (_below(253_402_300_800_000), "time of creation"),
    "spark_lance.table.Manifest.version": (_check_version, "version"),
    "spark_lance.index.ShardManifest.version": (_BELOW_2_63, "version"),
    "spark_lance.index.ShardManifest.writer_epoch": (_BELOW_2_63, "epoch"),
    "spark_lance.index.ShardManifest.current_generation": (_BELOW_2_63, "generation"),
    "spark_lance.index.ShardManifest.replay_after_wal_entry_position": (_BELOW_2_63, "position"),
    "spark_lance.index.ShardManifest.wal_entry_position_last_seen": (_BELOW_2_63, "position"),
    "spark_lance.index.SsTable.generation": (_BELOW_2_63, "generation"),
}


class _Step(NamedTuple):
    """A message field that contains a checked value, or messages that do."""

    field: str
    repeated: bool
    has_presence: bool
    check: tuple[Callable[..., object], str] | None
    inner: tuple[_Step, ...]


def check_message(message: Message, file: str | None = None) -> None:
    """Check every name, id, version and size in a protobuf message.

    Args:
        message: message of one of this package's formats.
        file: object that the message was read from.

    Raises:
        FormatError: a name is not allowed or a number is too large. The error names the file and the field.
    """
    _check_fields(message, _checked_fields(message.DESCRIPTOR), file)


def _check_fields(message: Message, plan: tuple[_Step, ...], file: str | None) -> None:
    for field, repeated, has_presence, check, inner in plan:
        if has_presence and not message.HasField(field):
            continue
        value = getattr(message, field)
        for each in value if repeated else (value,):
            if check is not None:
                check[0](each, check[1], file)
            if inner:
                _check_fields(each, inner, file)


@cache
def _checked_fields(descriptor: Descriptor) -> tuple[_Step, ...]:
    """Return the fields of a message type that must be checked."""
    return _steps(descriptor, ())


def _steps(descriptor: Descriptor, outer: tuple[str, ...]) -> tuple[_Step, ...]:
    if descriptor.full_name in outer or descriptor.GetOptions().map_entry:
        return ()
    steps = []
    for field in descriptor.fields:
        kind = field.message_type
        inner = () if kind is None else _steps(kind, (*outer, descriptor.full_name))
        check = _FIELDS.get(field.full_name)
        if check is not None or inner:
            repeated = _is_repeated(field)
            # A UUID is also checked if it is absent: every index must have one.
            has_presence = field.has_presence and not repeated and (check is None or kind is None)
            steps.append(_Step(field.name, repeated, has_presence, check, inner))
    return tuple(steps)


def _is_repeated(field: FieldDescriptor) -> bool:
    # Protobuf 6 has `is_repeated` and warns about `label`.
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(getattr(field, "label") == FieldDescriptor.LABEL_REPEATED)  # noqa: B009 (missing in its types)
