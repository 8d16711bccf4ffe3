"""The catalogs of a driver, configured by Spark's settings `spark.sql.catalog.<name>.*`.

spark.sql.catalog.<name>               org.lance.spark.catalog.LanceCatalog
spark.sql.catalog.<name>.root          the folder of its tables; without it, there are tables by path only
spark.sql.catalog.<name>.impl          instead of a root: `rest`, or another implementation of the package
                                       lance-namespace, which also gets all settings that are not listed here
spark.sql.catalog.<name>.storage.*     options of the store, for tables by name and by path
spark.sql.catalog.<name>.allowed_bases locations outside the tables that they may use, separated by commas
spark.sql.catalog.<name>.storage_for   with impl: locations such as s3://bucket/folder, separated by commas;
                                       for tables by name, storage.* is used for these locations only
spark.sql.catalog.<name>.paths         false: no tables by path
spark.sql.catalog.<name>.case_sensitive  false: names are matched ignoring case

The session's own catalog, `spark_catalog`, has the class LanceSessionCatalog, and Spark's registry instead of
a root.
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
_NAME_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")
# The path of a table, and the branch or tag after it.
_PATH_WITH_REF = re.compile(r"`([^`]*/[^`]*)`\.(`?(?:branch|tag)_.*)", re.IGNORECASE)
_CASE_SENSITIVE = "case_sensitive"
_SETTINGS = frozenset({"root", "paths", "impl", "storage_for", ALLOWED_BASES, _CASE_SENSITIVE})
# Options of a service that could send requests with the user's credentials to another server.
_REDIRECTING_OPTIONS = re.compile(r"(?i)endpoint|base_url|host|proxy|kwargs|connection_string|(^|_)url$")


@dataclass(frozen=True)
class OpenCatalog:
    """One catalog.

    Attributes:
        name: the catalog's name in SQL.
        root: the folder of its tables; None if it has tables by path only.
        storage: options of the store, without the prefix `storage.`.
        paths: whether SQL can name a table by its path.
        case_sensitive: whether names match only in their exact spelling.
        service: implementation and settings of a namespace service, instead of a root.
        storage_for: with a service, the locations for which `storage` is used.
        session: for the session's own catalog, a session of the driver. Its registry has the names.
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
        """Parse the settings of a catalog.

        Raises:
            OptionError: a setting is unknown, or its value is invalid.
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
                "case_sensitive, allowed_bases, storage_for, storage.*; run RESET "
                f"spark.sql.catalog.{name}.{unknown[0]}"
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
        """Whether the catalog has tables by name."""
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
        # Imported here because other catalogs do not need this code.
        kind = import_module("spark_lance.spark.sql.session_names").SessionNames
        return cast("SessionNames", kind(self.session, dict(self.storage)))

    def options(self, uri: str, name: Name = ()) -> dict[str, str]:
        """Return the options of the data source for a table at a path, with those of the user's store.

        A service could name a location of its own, so the user's options are not used for the service's
        locations, except those in `storage_for`.
        """
        storage = dict(self.storage)
        if not self._sends_storage(uri, name):
            bases_only = {key: value for key, value in storage.items() if key == ALLOWED_BASES}
            if len(bases_only) < len(storage):
                _warn_unused_storage(self.name, uri)
            storage = bases_only
        return {"path": uri, **{f"{_STORAGE}{key}": value for key, value in storage.items()}}

    def _sends_storage(self, uri: str, name: Name) -> bool:
        """Return whether the user's options of the store are used for the location of a table."""
        return (
            self.service is None or is_path(name) or any(_is_inside(uri, place) for place in self.storage_for)
        )

    def uri(self, name: Name) -> str:
        """Return the location of a table, given by its name or by its path.

        Raises:
            TableNotFoundError: the name does not exist, or the catalog accepts no paths.
        """
        if is_path(name):
            if not self.paths:
                raise TableNotFoundError(
                    f"catalog {self.name} takes no paths (spark.sql.catalog.{self.name}.paths is false)"
                )
            return name[0]
        return self._entry(name).uri

    def stored_name(self, name: Name) -> Name:
        """Return the stored spelling of a table's name. Its last part may name a metadata table or branch."""
        if self.case_sensitive or is_path(name) or not self.has_names:
            return name
        for end in (len(name), len(name) - 1)[: len(name)]:
            try:
                return (*self.names.table(name[:end]).name, *name[end:])
            except (TableNotFoundError, NamespaceNotFoundError):
                continue
        return name

    def reads(self, name: Name) -> dict[str, str]:
        """Return the options of the data source for a table, with the store's options from a service.

        Raises:
            TableNotFoundError: see `uri`.
        """
        if is_path(name):
            return self.options(self.uri(name), name)
        entry = self._entry(name)
        own = self.options(entry.uri, name)
        merged = bool(self.storage) and self._sends_storage(entry.uri, name)
        service_options = {
            f"{_STORAGE}{key}": value
            for key, value in entry.storage_options.items()
            if key != ALLOWED_BASES and not (merged and _REDIRECTING_OPTIONS.search(key))
        }
        return {**service_options, **own}

    def _entry(self, name: Name) -> TableEntry:
        if not self.has_names:
            raise TableNotFoundError(f"catalog {self.name} has no root, so no tables by name")
        entry = self.names.table(name)
        if entry.declared:
            raise TableNotFoundError(f"the table at {entry.uri} was declared, but nothing was written yet")
        return entry


def _is_true(name: str, settings: Mapping[str, str], key: str) -> bool:
    """Return a boolean setting, which is true by default."""
    text = settings.get(key, "true").lower()
    if text not in ("true", "false"):
        raise OptionError(f"spark.sql.catalog.{name}.{key} is true or false, not {text!r}")
    return text == "true"


def _ignoring_case(kind: str, catalog: Catalog) -> Catalog:
    # Imported here because other catalogs do not need this code.
    module = import_module("spark_lance.catalog.case_insensitive")
    return cast("Catalog", getattr(module, kind)(catalog))


def _is_inside(uri: str, place: str) -> bool:
    """Return whether a URI is a location or below it. Both have a scheme, or both are local paths."""
    parts, whole = (urlsplit(text.rstrip("/")) for text in (uri, place))
    schemes = {"s3" if part.scheme in ("s3a", "s3n") else part.scheme or "file" for part in (parts, whole)}
    steps = unquote(parts.path).split("/")
    inside = f"{parts.path}/".startswith(f"{whole.path}/") and not {".", ".."} & set(steps)
    return (
        len(schemes) == 1 and parts.netloc == whole.netloc and inside and not (parts.query or parts.fragment)
    )


@lru_cache(maxsize=256)
def _warn_unused_storage(name: str, uri: str) -> None:
    logger.warning(
        "catalog %s: its options storage.* are not used for %s, which the service names: "
        "list the location in spark.sql.catalog.%s.storage_for to use them there",
        *(name, redacted(uri), name),
    )


@lru_cache(maxsize=64)
def _directory(root: str, storage: tuple[tuple[str, str], ...]) -> DirectoryCatalog:
    # Imported here because a session that names no table does not need this code.
    kind = import_module("spark_lance.catalog.directory").DirectoryCatalog
    return cast("DirectoryCatalog", kind(root, dict(storage)))


@lru_cache(maxsize=64)
def _service(impl: str, properties: tuple[tuple[str, str], ...]) -> ServiceCatalog:
    kind = import_module("spark_lance.catalog.service").ServiceCatalog
    return cast("ServiceCatalog", kind(impl, properties))


def is_path(name: Name) -> bool:
    """Return whether a name is the path of a table: a single part that is an absolute path or a URI."""
    return len(name) == 1 and (name[0].startswith("/") or ":/" in name[0])


def catalog_name(catalog: OpenCatalog, text: str, current: Name = ()) -> Name:
    """Parse a name in SQL, with or without the catalog as its first part. Paths are not split.

    Args:
        catalog: the catalog.
        text: the name. A path in backticks can have a branch or tag after it.
        current: the namespace of names with one part.

    Raises:
        OptionError: the text is not a name.
    """
    if "/" in text:
        head, _, rest = text.partition(".")
        if head.strip("`") == catalog.name and rest.startswith("`"):
            text = rest
        match = _PATH_WITH_REF.fullmatch(text)
        return (match[1], *_split_name(match[2])) if match else (text.strip("`"),)
    parts = _split_name(text)
    return (*current, *parts) if len(parts) == 1 else inside(catalog, parts)


def _split_name(text: str) -> Name:
    """Return the parts of a name.

    Raises:
        OptionError: the text is not a name.
    """
    parts: list[str] = []
    at = 0
    while match := _NAME_PART.match(text, at):
        parts.append(match[1].replace("``", "`") if match[1] else match[2])
        at = match.end() + 1
        if text[match.end() : at] != ".":
            break
    if not parts or at <= len(text):
        raise OptionError(f"{text!r} is not a name: write parts with dots between them, such as db.t")
    return tuple(parts)


def inside(catalog: OpenCatalog, name: Name) -> Name:
    """Remove the catalog from the start of a name, unless a namespace has the catalog's name."""
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
        subject: the Java object of the request, or None.
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
