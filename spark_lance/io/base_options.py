"""Locations outside a table's root: which ones the table may use, and with which storage options.

A table's own files name the locations of its data: base paths and external blobs. The table may belong to
someone else, so a reader follows such a location only if it is

    near     in the same store as the table: the same scheme and the same host, bucket or container; on a disk
             below the folder that contains the table's folder
    listed   equal to, or below, an entry of the storage option `allowed_bases`

An entry without a host, such as `s3://`, allows every location of its scheme. `/` allows the whole disk.

Storage options apply only to the store that they were given for: the scheme and the host, bucket or container
of the table's own URI. Another location has its own options or none:

    base_store_params     a URI -> the options for it and everything below it; the longest match counts
    base_<id>.<name>      an option for the base path of this id
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from spark_lance.errors import OptionError
from spark_lance.io.locations import LOCAL

ALLOWED_BASES, BASE_STORE_PARAMS = "allowed_bases", "base_store_params"
_BASE_ID_OPTION = re.compile(r"base_([0-9]{1,10})\.(.+)", re.DOTALL)
# Schemes that name the same stores.
_FAMILIES = MappingProxyType(
    {"local": "file", "s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "adl": "az"}
)
_AZURE = "az"


@dataclass(frozen=True)
class Location:
    """A URI split into parts that can be compared.

    Attributes:
        scheme: normalised scheme: "s3" also for s3a, "az" also for abfss.
        authority: host and port, bucket, or container; "" on a disk.
        account: Azure account of the container; "" if the URI does not contain it.
        path: without a trailing slash. Local paths are absolute, without `.` and `..`.
    """

    scheme: str
    authority: str
    account: str
    path: str

    @classmethod
    def of(cls, uri: str) -> Location:
        """Parse a URI or a local path. Relative paths start at the working directory."""
        scheme, separator, rest = uri.partition("://")
        if not separator:
            scheme, rest = "file", uri[5:] if uri.startswith("file:/") else uri
        scheme = _FAMILIES.get(scheme.lower(), scheme.lower())
        if scheme == "file":
            return cls(scheme, "", "", os.path.abspath(rest or "/"))  # noqa: PTH100
        if scheme == "memory":
            return cls(scheme, "", "", "/" + rest.strip("/"))
        authority, _, path = rest.partition("/")
        account = ""
        if scheme == _AZURE:
            authority, _, host = authority.partition("@")
            account = host.partition(".")[0].lower()
        elif scheme not in ("s3", "gs"):
            authority = authority.rpartition("@")[2].lower()
        return cls(scheme, authority, account, path.rstrip("/"))

    def shares_store(self, other: Location, account: str = "") -> bool:
        """Return whether both locations have the same scheme and the same host, bucket or container.

        Args:
            other: location that the user named.
            account: Azure account of `other`, used if its URI contains none.
        """
        if (self.scheme, self.authority) != (other.scheme, other.authority):
            return False
        return not self.account or self.account == (other.account or account.lower())

    def is_below(self, other: Location) -> bool:
        """Return whether this location equals another one or is below it. Local paths are compared with links
        resolved, too."""
        if self.scheme != other.scheme:
            return False
        if not other.authority and not other.path:
            return True
        if not self.shares_store(other):
            return False
        if self.scheme != "file":
            return _is_prefix(other.path, self.path)
        return _is_prefix(other.path, self.path) and _is_prefix(
            os.path.realpath(other.path), os.path.realpath(self.path)
        )


def _is_prefix(folder: str, path: str) -> bool:
    parts, inner = folder.strip("/"), path.strip("/")
    return not parts or inner == parts or inner.startswith(f"{parts}/")


@dataclass(frozen=True)
class BaseOptions:
    """Locations outside the table that the user allows, and their storage options.

    Attributes:
        allowed: URIs. A location may be used if it is one of them or below one of them.
        by_uri: URI -> storage options for it and for everything below it.
        by_id: id of a base path -> storage options.
    """

    allowed: tuple[str, ...] = ()
    by_uri: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    by_id: Mapping[int, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    def allows(self, location: Location) -> bool:
        """Return whether the user allows a location."""
        return any(location.is_below(Location.of(uri)) for uri in self.allowed)

    def options_for(self, location: Location, base_id: int | None = None) -> Mapping[str, Any] | None:
        """Return the storage options for a location; None if the user gave none."""
        matching = [uri for uri in self.by_uri if location.is_below(Location.of(uri))]
        if matching:
            return self.by_uri[max(matching, key=len)]
        return None if base_id is None else self.by_id.get(base_id)

    def and_also(self, other: BaseOptions) -> BaseOptions:
        """Return both sets of options merged. `self` wins where both set a value."""
        return BaseOptions(
            tuple(dict.fromkeys([*self.allowed, *other.allowed])),
            {**other.by_uri, **self.by_uri},
            {**other.by_id, **self.by_id},
        )

    def as_options(self) -> dict[str, Any]:
        """Return the equivalent storage options, the inverse of `read_base_options`."""
        options: dict[str, Any] = {}
        if self.allowed:
            options[ALLOWED_BASES] = list(self.allowed)
        if self.by_uri:
            options[BASE_STORE_PARAMS] = {uri: dict(each) for uri, each in self.by_uri.items()}
        for number, each in self.by_id.items():
            options.update({f"base_{number}.{name}": value for name, value in each.items()})
        return options


def is_base_option(name: str) -> bool:
    """Return whether a storage option applies to locations outside the table."""
    return name.lower() in (ALLOWED_BASES, BASE_STORE_PARAMS) or _BASE_ID_OPTION.fullmatch(name) is not None


def read_base_options(options: Mapping[str, Any]) -> BaseOptions:
    """Return the parsed storage options of base paths (those for which `is_base_option` is true).

    Raises:
        OptionError: a value cannot be used. The message does not quote it, because it may hold secrets.
    """
    allowed: tuple[str, ...] = ()
    by_uri: dict[str, Mapping[str, Any]] = {}
    by_id: dict[int, dict[str, Any]] = {}
    for name, value in options.items():
        if name.lower() == ALLOWED_BASES:
            allowed = _parse_uris(value)
        elif name.lower() == BASE_STORE_PARAMS:
            by_uri = {_absolute_uri(uri): dict(each) for uri, each in _parse_params(value).items()}
        elif (match := _BASE_ID_OPTION.fullmatch(name)) is not None:
            by_id.setdefault(int(match[1]), {})[match[2]] = value
    return BaseOptions(allowed, by_uri, by_id)


def _parse_uris(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = _parse_json(value, ALLOWED_BASES) if value.lstrip().startswith("[") else value.split(",")
    if isinstance(value, os.PathLike):
        value = [value]
    if not isinstance(value, list | tuple | set | frozenset):
        raise OptionError(
            f"storage option {ALLOWED_BASES!r} is a list of URIs, or URIs with commas in between"
        )
    texts = [os.fspath(each) if isinstance(each, os.PathLike) else each for each in value]
    if not all(isinstance(each, str) for each in texts):
        raise OptionError(f"storage option {ALLOWED_BASES!r} is a list of URIs: one entry is not text")
    uris = tuple(_absolute_uri(each.strip()) for each in texts if each.strip())
    for uri in uris:
        if ".." in unquote(uri).split("/"):
            raise OptionError(f"storage option {ALLOWED_BASES!r} takes URIs without '..', not {uri!r}")
    return uris


def _parse_params(value: Any) -> Mapping[str, Mapping[str, Any]]:
    if isinstance(value, str):
        value = _parse_json(value, BASE_STORE_PARAMS)
    if not isinstance(value, Mapping) or not all(isinstance(each, Mapping) for each in value.values()):
        raise OptionError(f"storage option {BASE_STORE_PARAMS!r} maps URIs to the storage options for them")
    return {os.fspath(uri): each for uri, each in value.items()}


def _parse_json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise OptionError(f"storage option {name!r} starts like JSON but is not") from None


def _absolute_uri(uri: str) -> str:
    # A task may run in a process with another working directory.
    scheme, separator, _ = uri.partition("://")
    if separator and scheme.lower() not in LOCAL:
        return uri
    return Location.of(uri).path
