"""Azure Blob Storage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from spark_lance.errors import OptionError
from spark_lance.io.cloud import CloudStore
from spark_lance.io.storage_options import IGNORED, Alias, Driver, flag, place_option, seconds

_ALIASES: Mapping[str, Alias] = {
    "account_name": Alias("account_name"),
    "account_key": Alias("account_key"),
    "access_key": Alias("account_key"),
    "master_key": Alias("account_key"),
    "sas_key": Alias("sas_token"),
    "sas_token": Alias("sas_token"),
    "client_id": Alias("client_id"),
    "client_secret": Alias("client_secret"),
    "tenant_id": Alias("tenant_id"),
    "authority_id": Alias("tenant_id"),
    "endpoint": Alias("endpoint"),
    "use_emulator": Alias("use_emulator", flag),
    "skip_signature": Alias("anon", flag),
    "connect_timeout": Alias("connection_timeout", seconds),
    "timeout": Alias("read_timeout", seconds),
    "request_timeout": Alias("read_timeout", seconds),
    "allow_http": IGNORED,
    "container_name": IGNORED,
    "use_fabric_endpoint": IGNORED,
    "download_retry_count": IGNORED,
}
_NAMES = "account_host account_key account_name anon blocksize client_id client_secret connection_string"
_NAMES += " credential location_mode max_concurrency sas_token tenant_id"
# The one account of Azurite, Azure's emulator; its key is the same everywhere.
_EMULATED_ACCOUNT = "devstoreaccount1"
_EMULATED_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class AzureStore(CloudStore):
    """Containers of Azure Blob Storage; paths are `container/name`."""

    driver = Driver(
        re.compile("azure_(storage_)?"), _ALIASES, frozenset(_NAMES.split()), "spark-lance[azure]"
    )

    @classmethod
    def driver_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        return _resolve_endpoint(super().driver_options(options))


def _resolve_endpoint(options: dict[str, Any]) -> dict[str, Any]:
    """Return the adlfs options, with the endpoint replaced by adlfs's own options for the account's location.

    adlfs accepts a host only if it uses https and serves one account at its root. Every other endpoint, such
    as an emulator's, becomes a connection string.

    Raises:
        OptionError: the endpoint needs a connection string, which takes an account key or a SAS token.
    """
    out = dict(options)
    if out.pop("use_emulator", False):
        out.setdefault("account_name", _EMULATED_ACCOUNT)
        out.setdefault("account_key", _EMULATED_KEY)
        out.setdefault("endpoint", f"http://127.0.0.1:10000/{out['account_name']}")
    endpoint = str(out.pop("endpoint", ""))
    parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    if not endpoint:
        return out
    if parts.scheme == "https" and not parts.path.strip("/"):
        place_option(out, "account_host", parts.netloc, "endpoint")
        return out
    settings = [("DefaultEndpointsProtocol", parts.scheme), ("BlobEndpoint", endpoint)]
    if "account_key" in out and "account_name" in out:
        settings += [("AccountName", out["account_name"]), ("AccountKey", out["account_key"])]
    elif "sas_token" in out:
        settings += [("SharedAccessSignature", str(out["sas_token"]).removeprefix("?"))]
    else:
        raise OptionError(
            f"storage option endpoint: {endpoint} also needs account_name and account_key, or sas_token"
        )
    place_option(
        out, "connection_string", "".join(f"{name}={value};" for name, value in settings), "endpoint"
    )
    return out
