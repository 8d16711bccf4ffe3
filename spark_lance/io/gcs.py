"""Google Cloud Storage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from spark_lance.io.cloud import CloudStore
from spark_lance.io.storage_options import (
    IGNORED,
    Alias,
    Driver,
    anonymous_token,
    parsed,
    seconds,
)

_ALIASES: Mapping[str, Alias] = {
    "service_account": Alias("token"),
    "service_account_path": Alias("token"),
    "application_credentials": Alias("token"),
    "service_account_key": Alias("token", parsed),
    "storage_token": Alias("token"),
    "bearer_token": Alias("token"),
    "skip_signature": Alias("token", anonymous_token),
    "base_url": Alias("endpoint_url"),
    "endpoint": Alias("endpoint_url"),
    "project_id": Alias("project"),
    "timeout": Alias("requests_timeout", seconds),
    "request_timeout": Alias("requests_timeout", seconds),
    "allow_http": IGNORED,
    "bucket": IGNORED,
    "bucket_name": IGNORED,
    "download_retry_count": IGNORED,
}
_NAMES = (
    "access consistency default_location endpoint_url project requester_pays session_kwargs timeout token"
)


@dataclass(frozen=True)
class GcsStore(CloudStore):
    """Buckets of Google Cloud Storage; paths are `bucket/name`."""

    driver = Driver(re.compile("google_"), _ALIASES, frozenset(_NAMES.split()), "spark-lance[gcs]")
