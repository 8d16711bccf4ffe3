"""The catalogs of a driver, as Spark's settings `spark.sql.catalog.<name>.*` describe them.

spark.sql.catalog.<name>               org.lance.spark.catalog.LanceCatalog
spark.sql.catalog.<name>.root          the folder of its tables; without one it has path tables only
spark.sql.catalog.<name>.impl          in place of a root: `rest`, or another implementation of the package
                                       lance-namespace; settings that are not listed here are its own
spark.sql.catalog.<name>.storage.*     options of the store, for its tables by name and by path
spark.sql.catalog.<name>.allowed_bases places outside of its tables that they may use, with commas in between
spark.sql.catalog.<name>.storage_for   with impl: places such as s3://bucket/folder, with commas between them;
                                       for tables by name, storage.* is sent to these places only
spark.sql.catalog.<name>.paths         false: it has no path tables
spark.sql.catalog.<name>.case_sensitive  false: names are matched without regard to case

The session's own catalog, `spark_catalog`, has the class LanceSessionCatalog, and Spark's registry in place
of a root.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

from spark_lance.catalog.names import Catalog, Name, TableEntry
from spark_lance.errors import NamespaceNotFoundError, OptionError, TableNotFoundError
from spark_lance.io.base_options import ALLOWED_BASES
from spark_lance.redaction import redacted
from spark_lance.spark.base.compat import SESSION_CATALOG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

    from spark_lance.catalog.directory import DirectoryCatalog
    from spark_lance.catalog.service import ServiceCatalog
    from spark_lance.spark.sql.session_names import SessionNames

logger = logging.getLogger(__name__)

_STORAGE = "storage."
# A part of a name in SQL, quoted or not.
_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")
_CASE_SENSITIVE = "case_sensitive"
_SETTINGS = frozenset({"root", "paths", "impl", "storage_for", ALLOWED_BASES, _CASE_SENSITIVE})
# Options that could lead a service's requests, with the user's credentials, to another server.
_LEADING = re.compile(r"(?i)endpoint|base_url|host|proxy|kwargs|connection_string|(^|_)url$")


@dataclass(frozen=True)
class OpenCatalog:
    """One catalog.

    Attributes:
        name: as SQL names it.
        root: the folder of its tables; None if it has path tables only.
        storage: options of the store, without the prefix `storage.`.
        paths: whether a path in place of a name is a table.
        case_sensitive: whether names match only in their exact spelling.
        service: implementation and settings of a namespace service, in place of a root.
        storage_for: the places that `storage` is for, of those that a service names.
        session: of the session's own catalog, a session of the driver whose registry has the names.
    """

    name: str
    root: str | None
    storage: tuple[tuple[str, str], ...] = field(repr=False)
    paths: bool
    service: tuple[str, tuple[tuple[str, str], ...]] | None = field(default=None, repr=False)
    storage_for: tuple[str, ...] = ()
    case_sensitive: bool = True
    session: SparkSession | None = field(default=None, repr=False)

    @classmethod
    def of(cls, name: str, options: Mapping[str, str]) -> OpenCatalog:
        """Read the settings of a catalog.

        Raises:
            OptionError: one is unknown, or its value cannot be used.
        """
        folded = {key.lower(): value for key, value in options.items()}
        storage_options = {
            key[len(_STORAGE) :]: value for key, value in options.items() if key.lower().startswith(_STORAGE)
        }
        if ALLOWED_BASES in folded:
            storage_options[ALLOWED_BASES] = folded[ALLOWED_BASES]
        storage = tuple(sorted(storage_options.items()))
        unknown = [key for key in folded if key not in _SETTINGS and not key.startswith(_STORAGE)]
        impl = folded.get("impl")
        if impl is not None and "root" in folded:
            raise OptionError(f"spark.sql.catalog.{name} has a root or an impl, not both")
        if name == SESSION_CATALOG and ("root" in folded or impl is not None):
            raise OptionError(
                "the session's own catalog knows where its tables are: leave out "
                f"spark.sql.catalog.{name}.root and impl, and set spark.sql.warehouse.dir before the session "
                "starts"
            )
        if unknown and impl is None:
            raise OptionError(
                f"spark.sql.catalog.{name}.{unknown[0]} is not known: there are root, impl, paths, "
                "case_sensitive, allowed_bases, storage_for, storage.*"
            )
        if name == SESSION_CATALOG and _CASE_SENSITIVE in folded:
            raise OptionError(
                f"spark.sql.catalog.{name}.{_CASE_SENSITIVE} has no effect: leave it out, as Spark's "
                "registry matches names by spark.sql.caseSensitive"
            )
        paths, case_sensitive = (_is_true(name, folded, key) for key in ("paths", _CASE_SENSITIVE))
        settings = tuple(sorted((key, value) for key, value in options.items() if key.lower() in unknown))
        service = None if impl is None else (impl, settings)
        places = tuple(filter(None, (place.strip() for place in folded.get("storage_for", "").split(","))))
        return cls(name, folded.get("root"), storage, paths, service, places, case_sensitive)

    @property
    def has_names(self) -> bool:
        """Whether there are tables by name."""
        return self.root is not None or self.service is not None or self.session is not None

    @property
    def names(self) -> Catalog:
        """The tables by name.

        Raises:
            NamespaceNotFoundError: the catalog has no root.
        """
        if self.session is not None:
            return self.registry
        if self.service is not None:
            service = _service(*self.service)
            return service if self.case_sensitive else _ignoring_case("CaseInsensitiveCatalog", service)
        if self.root is None:
            raise NamespaceNotFoundError(
                f"catalog {self.name} has no tables by name: set spark.sql.catalog.{self.name}.root, "
                f"or name a path, such as {self.name}.`/data/t`"
            )
        directory = _directory(self.root, self.storage)
        return directory if self.case_sensitive else _ignoring_case("CaseInsensitiveDirectory", directory)

    @property
    def registry(self) -> SessionNames:
        """The tables of the session's own catalog."""
        # The other catalogs do not load the code for it.
        kind = import_module("spark_lance.spark.sql.session_names").SessionNames
        return cast("SessionNames", kind(self.session, dict(self.storage)))

    def options(self, uri: str, name: Name = ()) -> dict[str, str]:
        """Return the options of the data source for a table at a path, with those of the user's store.

        The user's options are left out for a place that only a service names: it could name its own.
        """
        storage = dict(self.storage)
        if not self._is_meant(uri, name):
            bases_only = {key: value for key, value in storage.items() if key == ALLOWED_BASES}
            if len(bases_only) < len(storage):
                _tell_of_left_out(self.name, uri)
            storage = bases_only
        return {"path": uri, **{f"{_STORAGE}{key}": value for key, value in storage.items()}}

    def _is_meant(self, uri: str, name: Name) -> bool:
        """Whether the user's options are for a place that a name leads to."""
        return self.service is None or is_path(name) or any(_is_in(uri, place) for place in self.storage_for)

    def uri(self, name: Name) -> str:
        """Return the path of a table, which a name or a path in its place leads to.

        Raises:
            TableNotFoundError: there is no such name, or paths are switched off.
        """
        if is_path(name):
            if not self.paths:
                raise TableNotFoundError(
                    f"catalog {self.name} takes no paths (spark.sql.catalog.{self.name}.paths is false)"
                )
            return name[0]
        return self._entry(name).uri

    def stored_name(self, name: Name) -> Name:
        """Return the stored spelling of a table's name, which a metadata table or branch may follow."""
        if self.case_sensitive or is_path(name) or not self.has_names:
            return name
        for end in (len(name), len(name) - 1)[: len(name)]:
            try:
                return (*self.names.table(name[:end]).name, *name[end:])
            except (TableNotFoundError, NamespaceNotFoundError):
                continue
        return name

    def reads(self, name: Name) -> dict[str, str]:
        """Return the options of the data source for a table, with those of the store that a service adds.

        Raises:
            TableNotFoundError: as `uri`.
        """
        if is_path(name):
            return self.options(self.uri(name), name)
        entry = self._entry(name)
        own = self.options(entry.uri, name)
        merged = bool(self.storage) and self._is_meant(entry.uri, name)
        more = {
            f"{_STORAGE}{key}": value
            for key, value in entry.storage_options.items()
            if key != ALLOWED_BASES and not (merged and _LEADING.search(key))
        }
        return {**more, **own}

    def _entry(self, name: Name) -> TableEntry:
        if not self.has_names:
            raise TableNotFoundError(f"catalog {self.name} has no root, so no tables by name")
        entry = self.names.table(name)
        if entry.declared:
            raise TableNotFoundError(f"the table at {entry.uri} was declared, but nothing was written yet")
        return entry


def _is_true(name: str, settings: Mapping[str, str], key: str) -> bool:
    """Return a setting that is true or false; true if it is not set."""
    text = settings.get(key, "true").lower()
    if text not in ("true", "false"):
        raise OptionError(f"spark.sql.catalog.{name}.{key} is true or false, not {text!r}")
    return text == "true"


def _ignoring_case(kind: str, catalog: Catalog) -> Catalog:
    # Other catalogs do not load the code for it.
    module = import_module("spark_lance.catalog.case_insensitive")
    return cast("Catalog", getattr(module, kind)(catalog))


def _is_in(uri: str, place: str) -> bool:
    """Whether a URI is a place or below it; both have a scheme, or both are paths of this machine."""
    parts, whole = (urlsplit(text.rstrip("/")) for text in (uri, place))
    schemes = {"s3" if part.scheme in ("s3a", "s3n") else part.scheme or "file" for part in (parts, whole)}
    steps = unquote(parts.path).split("/")
    inside = f"{parts.path}/".startswith(f"{whole.path}/") and not {".", ".."} & set(steps)
    return (
        len(schemes) == 1 and parts.netloc == whole.netloc and inside and not (parts.query or parts.fragment)
    )


@lru_cache(maxsize=256)
def _tell_of_left_out(name: str, uri: str) -> None:
    logger.warning(
        "catalog %s: its options storage.* are not used for %s, which the service names: "
        "list the place in spark.sql.catalog.%s.storage_for if they are meant for it",
        *(name, redacted(uri), name),
    )


@lru_cache(maxsize=64)
def _directory(root: str, storage: tuple[tuple[str, str], ...]) -> DirectoryCatalog:
    # A session that names no table does not load the code for directories.
    kind = import_module("spark_lance.catalog.directory").DirectoryCatalog
    return cast("DirectoryCatalog", kind(root, dict(storage)))


@lru_cache(maxsize=64)
def _service(impl: str, properties: tuple[tuple[str, str], ...]) -> ServiceCatalog:
    kind = import_module("spark_lance.catalog.service").ServiceCatalog
    return cast("ServiceCatalog", kind(impl, properties))


def is_path(name: Name) -> bool:
    """Whether a name is a path in place of one: a single part that is an absolute path or a URI."""
    return len(name) == 1 and (name[0].startswith("/") or ":/" in name[0])


def catalog_name(catalog: OpenCatalog, text: str, current: Name = ()) -> Name:
    """Return the name that a text in SQL means, with or without the catalog in front; paths stay whole.

    Args:
        catalog: the catalog.
        text: the name.
        current: the namespace that a name of one part is in.

    Raises:
        OptionError: it is not a name.
    """
    if "/" in text:
        head, _, rest = text.partition(".")
        if head.strip("`") == catalog.name and rest.startswith("`"):
            text = rest
        return (text.strip("`"),)
    parts: list[str] = []
    at = 0
    while match := _PART.match(text, at):
        parts.append(match[1].replace("``", "`") if match[1] else match[2])
        at = match.end() + 1
        if text[match.end() : at] != ".":
            break
    if not parts or at <= len(text):
        raise OptionError(f"{text!r} is not a name: write parts with dots between them, such as db.t")
    return (*current, *parts) if len(parts) == 1 else inside(catalog, tuple(parts))


def inside(catalog: OpenCatalog, name: Name) -> Name:
    """Return a name without the catalog in front, unless a namespace has the catalog's name."""
    if len(name) > 1 and name[0] == catalog.name and (catalog.name,) not in catalog.names.namespaces():
        return name[1:]
    return name


@dataclass(frozen=True)
class BridgeRequest:
    """A request of the Java side; `protocol` has the types of requests and answers.

    Attributes:
        spark: a session of the driver.
        source: the data source of the format.
        body: the decoded JSON object.
        subject: the Java object that the request is about, or None.
    """

    spark: SparkSession
    source: type[DataSource]
    body: Mapping[str, Any] = field(repr=False)
    subject: Any

    @property
    def catalog(self) -> OpenCatalog:
        """The catalog of the request."""
        catalog = OpenCatalog.of(self.body["catalog"], self.body["options"])
        return replace(catalog, session=self.spark) if catalog.name == SESSION_CATALOG else catalog

    @property
    def name(self) -> Name:
        """The name in the request."""
        return tuple(self.body["name"])
