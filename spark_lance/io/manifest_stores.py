"""Which external manifest stores there are, and how a URI or a storage option names one.

s3+ddb://bucket/path?ddbTableName=T       a table in s3://bucket/path, its versions in DynamoDB's table T
manifest_store=dynamodb://T               the same as a storage option
manifest_store=sqlite:///shared/m.db      versions in a SQLite file (absolute path: three slashes)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from spark_lance.errors import OptionError
from spark_lance.io.manifest_dynamodb import DynamoManifestStore
from spark_lance.io.manifest_sqlite import SqliteManifestStore
from spark_lance.io.manifest_store import ManifestStore

__all__ = ["MANIFEST_STORES", "named_manifest_store", "split_uri"]

_DDB = "s3+ddb://"
_TABLE_NAME = "ddbTableName"

# (what follows the scheme, protocol of the tables, options of their store, DynamoDB endpoint) -> store
Opener = Callable[[str, str, Mapping[str, Any], "str | None"], ManifestStore]


def _dynamodb(name: str, protocol: str, options: Mapping[str, Any], endpoint: str | None) -> ManifestStore:
    if protocol not in ("s3", "s3a"):
        raise OptionError(f"a manifest store in DynamoDB serves tables in s3://, not in {protocol}://")
    client = options.get("client_kwargs") or {}
    return DynamoManifestStore(
        table=name,
        endpoint=endpoint,
        region=client.get("region_name"),
        profile=options.get("profile"),
        credentials=(options.get("key"), options.get("secret"), options.get("token")),
    )


def _sqlite(path: str, protocol: str, options: Mapping[str, Any], endpoint: str | None) -> ManifestStore:
    if not path.startswith("/"):
        raise OptionError(f"a SQLite manifest store needs an absolute path, as sqlite:///{path}")
    scheme = "s3" if protocol == "s3a" else protocol
    return SqliteManifestStore(path, scheme)


MANIFEST_STORES: Mapping[str, Opener] = MappingProxyType({"dynamodb": _dynamodb, "sqlite": _sqlite})


def named_manifest_store(
    url: str | None, protocol: str, options: Mapping[str, Any], dynamodb_endpoint: str | None
) -> ManifestStore | None:
    """Return the manifest store that a URL names, None if there is no URL.

    Args:
        url: "dynamodb://table" or "sqlite:///path".
        protocol: of the tables' store.
        options: the arguments of the tables' store, for credentials and region.
        dynamodb_endpoint: of a DynamoDB that is not AWS's own.

    Raises:
        OptionError: no such kind of store, or its name is not complete.
    """
    if url is None:
        return None
    scheme, separator, rest = url.partition("://")
    opener = MANIFEST_STORES.get(scheme)
    if opener is None or not separator or not rest:
        raise OptionError(
            f"manifest_store is a URL of one of: {', '.join(f'{name}://...' for name in MANIFEST_STORES)}"
        )
    return opener(rest, protocol, options, dynamodb_endpoint)


def split_uri(uri: str) -> tuple[str, str | None]:
    """Return the URI of the store proper, and the URL of the manifest store that `uri` names, if any.

    Raises:
        OptionError: an s3+ddb:// URI does not name exactly one DynamoDB table, and nothing else.
    """
    if not uri.startswith(_DDB):
        return uri, None
    parts = urlsplit(uri)
    query = parse_qs(parts.query)
    if list(query) != [_TABLE_NAME] or len(query[_TABLE_NAME]) != 1:
        raise OptionError(f"{_DDB} needs exactly one parameter: {_DDB}bucket/path?{_TABLE_NAME}=name")
    return f"s3://{parts.netloc}{parts.path}", f"dynamodb://{query[_TABLE_NAME][0]}"
