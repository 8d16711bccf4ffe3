"""Manifest entries in DynamoDB, in the layout that other Lance implementations use.

    base_uri (S)   hash key: the table's root without scheme and bucket
    version (N)    range key
    path (S)       path of the manifest, without scheme and bucket, like base_uri
    size (N)       size of the manifest in bytes
    committer (S)  writer of the row
    e_tag (S)      written by old releases, not read

All reads are strongly consistent. boto3 is an extra (`dynamodb`) and is imported when first needed.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_lance.errors import StoreError
from spark_lance.io.failures import is_transient, safe_cause, translated
from spark_lance.io.identity import environment_digest
from spark_lance.io.manifest_store import ManifestEntry
from spark_lance.io.retry import RetryPolicy, run_with_retries

_COMMITTER = "spark_lance"
_KEYS = (("base_uri", "HASH", "S"), ("version", "RANGE", "N"))
_TAKEN = "ConditionalCheckFailedException"
_NO_TABLE = "ResourceNotFoundException"


@dataclass(frozen=True)
class DynamoManifestStore:
    """Manifest entries of tables in S3 buckets.

    Attributes:
        table: name of the DynamoDB table.
        endpoint: URL of a DynamoDB outside AWS; defaults to the environment variable `DYNAMODB_ENDPOINT`.
        region: AWS region of the DynamoDB table; defaults to the environment's.
        profile: profile of the AWS configuration.
        credentials: access key, secret key and session token; default to the environment's.
    """

    table: str
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    credentials: tuple[str | None, str | None, str | None] = field(default=(None, None, None), repr=False)

    def get(self, root: str, version: int) -> ManifestEntry | None:
        """Return the row of a version."""
        answer = self._read("get_item", root, Key=_key(root, version), ConsistentRead=True)
        item = answer.get("Item")
        return _entry(root, item) if item else None

    def get_latest(self, root: str) -> ManifestEntry | None:
        """Return the row of the highest version."""
        items = self._query(root, ScanIndexForward=False, Limit=1)
        return _entry(root, items[0]) if items else None

    def put_if_absent(self, root: str, entry: ManifestEntry) -> None:
        """Add a row. The request is sent once.

        Raises:
            FileExistsError: the version already has a row.
        """
        condition = "attribute_not_exists(base_uri) AND attribute_not_exists(version)"
        if not self._put(root, entry, condition):
            raise FileExistsError(f"version {entry.version} of {root} has a manifest")

    def put_if_exists(self, root: str, entry: ManifestEntry) -> None:
        """Replace the row of a version.

        Raises:
            FileNotFoundError: the version has no row.
        """
        condition = "attribute_exists(base_uri) AND attribute_exists(version)"
        if not self._put(root, entry, condition):
            raise FileNotFoundError(f"version {entry.version} of {root} has no manifest entry")

    def delete(self, root: str, version: int | None = None) -> None:
        """Remove the row of a version, or of all versions of the table."""
        if version is not None:
            self._read("delete_item", root, Key=_key(root, version))
            return
        while items := self._query(root, ProjectionExpression="base_uri, version"):
            for item in items:
                self._read("delete_item", root, Key=item)

    def _query(self, root: str, **request: Any) -> list[dict[str, Any]]:
        answer = self._read(
            "query",
            root,
            KeyConditionExpression="base_uri = :base_uri",
            ExpressionAttributeValues={":base_uri": {"S": _without_bucket(root)}},
            ConsistentRead=True,
            **request,
        )
        return list(answer["Items"])

    def _put(self, root: str, entry: ManifestEntry, condition: str) -> bool:
        """Put a row and return True; False if the condition does not hold."""
        item = {**_key(root, entry.version), "path": {"S": _without_bucket(entry.path)}}
        item["committer"] = {"S": _COMMITTER}
        if entry.size is not None:
            item["size"] = {"N": str(entry.size)}
        request = {"TableName": self.table, "Item": item, "ConditionExpression": condition}
        doing = f"writing the manifest entry of {root} to the DynamoDB table {self.table}"
        try:
            self._guarded(doing, lambda: self._client().put_item(**request))
        except StoreError as error:
            if _code(error.__cause__) == _TAKEN:
                return False
            raise
        return True

    def _read(self, operation: str, root: str, **request: Any) -> dict[str, Any]:
        """Send a request that may be retried."""
        doing = f"asking the DynamoDB table {self.table} for {root}"
        send = lambda: getattr(self._client(), operation)(TableName=self.table, **request)  # noqa: E731
        answer = self._guarded(
            doing, lambda: run_with_retries(send, RetryPolicy.of_requests(), is_transient, doing)
        )
        return dict(answer)

    def _guarded(self, doing: str, send: Callable[[], Any]) -> Any:
        options = dict(zip(("key", "secret", "token"), self.credentials, strict=True))
        try:
            return send()
        except Exception as error:
            if _code(error) == _NO_TABLE:
                raise StoreError(f"DynamoDB table {self.table} does not exist") from error
            if _code(error) == _TAKEN:
                raise StoreError("the condition does not hold") from error
            raise translated(error, doing, options) from safe_cause(error, options)

    def _client(self) -> Any:
        endpoint = self.endpoint or os.environ.get("DYNAMODB_ENDPOINT")
        caller = (os.getpid(), environment_digest())
        return _client(self.table, endpoint, self.region, self.profile, self.credentials, caller)


@functools.lru_cache(maxsize=16)
def _client(
    table: str,
    endpoint: str | None,
    region: str | None,
    profile: str | None,
    credentials: tuple[str | None, str | None, str | None],
    caller: tuple[int, str],  # noqa: ARG001 (part of the key of the cache: the process, its environment)
) -> Any:
    """Return a client for a table after checking its keys. The threads of a process share one client."""
    try:
        boto3 = importlib.import_module("boto3")
        config = importlib.import_module("botocore.config").Config(retries={"total_max_attempts": 1})
    except ImportError as error:
        raise StoreError(
            "a manifest store in DynamoDB needs boto3: pip install 'spark-lance[dynamodb]'"
        ) from error
    key, secret, token = credentials
    session = boto3.session.Session(
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        aws_session_token=token,
        region_name=region,
        profile_name=profile,
    )
    client = session.client("dynamodb", endpoint_url=endpoint, config=config)
    send = lambda: client.describe_table(TableName=table)  # noqa: E731
    description = run_with_retries(
        send, RetryPolicy.of_requests(), is_transient, f"describing the DynamoDB table {table}"
    )
    _check_keys(table, description["Table"])
    return client


def _check_keys(table: str, description: Mapping[str, Any]) -> None:
    types = {entry["AttributeName"]: entry["AttributeType"] for entry in description["AttributeDefinitions"]}
    keys = tuple(
        (entry["AttributeName"], entry["KeyType"], types.get(entry["AttributeName"]))
        for entry in description["KeySchema"]
    )
    if sorted(keys) != sorted(_KEYS):
        raise StoreError(
            f"the DynamoDB table {table} is not a manifest store: its keys must be base_uri "
            "(string, hash key) and version (number, range key)"
        )


def _key(root: str, version: int) -> dict[str, Any]:
    return {"base_uri": {"S": _without_bucket(root)}, "version": {"N": str(version)}}


def _without_bucket(path: str) -> str:
    return path.partition("/")[2]


def _entry(root: str, item: Mapping[str, Any]) -> ManifestEntry:
    bucket = root.partition("/")[0]
    size = int(item["size"]["N"]) if "size" in item else None
    return ManifestEntry(int(item["version"]["N"]), f"{bucket}/{item['path']['S']}", size)


def _code(error: BaseException | None) -> str:
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, Mapping) else ""
