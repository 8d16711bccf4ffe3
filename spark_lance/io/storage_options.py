"""Storage options: the names that users of other Lance implementations know, turned into fsspec's.

Lance names settings as `aws_region`, `region`, `google_service_account`, `azure_storage_account_name`, ...;
the drivers s3fs, gcsfs and adlfs have names of their own. Both are understood, Lance's in upper case as well.
A few options are this package's: they do not reach the driver.
"""

from __future__ import annotations

import base64
import difflib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from spark_lance.errors import OptionError
from spark_lance.io.base_options import (
    ALLOWED_BASES,
    BASE_STORE_PARAMS,
    BaseOptions,
    is_base_option,
    read_base_options,
)
from spark_lance.io.retry import RetryPolicy

__all__ = ["ALIASES", "DRIVERS", "Alias", "OwnOptions", "fsspec_options", "split_own"]

logger = logging.getLogger(__name__)

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|)")
_SECONDS = MappingProxyType({"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0})


def _same(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise ValueError("expected true or false")
    return text in _TRUE


def _not(value: Any) -> bool:
    return not _flag(value)


def _seconds(value: Any) -> float:
    match = _DURATION.fullmatch(str(value).strip().lower())
    if match is None:
        raise ValueError("expected a time such as 30s or 500ms")
    return float(match[1]) * _SECONDS[match[2]]


def _count(value: Any) -> int:
    number = int(value)
    if number < 0:
        raise ValueError("expected a number from 0 on")
    return number


def _addressing(value: Any) -> str:
    return "virtual" if _flag(value) else "path"


def _proxies(value: Any) -> dict[str, str]:
    return {"http": str(value), "https": str(value)}


def _base64(value: Any) -> bytes:
    return base64.b64decode(str(value), validate=True)


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _anonymous_token(value: Any) -> str | None:
    return "anon" if _flag(value) else None


@dataclass(frozen=True)
class Alias:
    """The target of a setting.

    Attributes:
        target: the driver's name; with dots, an entry of a nested setting; "" for a setting that the driver
            does not need.
        convert: converts the user's value; a result of None sets nothing.
    """

    target: str
    convert: Callable[[Any], Any] = _same


_IGNORED = Alias("")
_S3: Mapping[str, Alias] = {
    "access_key_id": Alias("key"),
    "secret_access_key": Alias("secret"),
    "session_token": Alias("token"),
    "endpoint": Alias("endpoint_url"),
    "endpoint_url": Alias("endpoint_url"),
    "region": Alias("client_kwargs.region_name"),
    "default_region": Alias("client_kwargs.region_name"),
    "profile": Alias("profile"),
    "skip_signature": Alias("anon", _flag),
    "virtual_hosted_style_request": Alias("config_kwargs.s3.addressing_style", _addressing),
    "unsigned_payload": Alias("config_kwargs.s3.payload_signing_enabled", _not),
    "server_side_encryption": Alias("s3_additional_kwargs.ServerSideEncryption"),
    "sse_kms_key_id": Alias("s3_additional_kwargs.SSEKMSKeyId"),
    "sse_bucket_key_enabled": Alias("s3_additional_kwargs.BucketKeyEnabled", _flag),
    "sse_customer_key_base64": Alias("s3_additional_kwargs.SSECustomerKey", _base64),
    "request_payer": Alias("requester_pays", _flag),
    "allow_invalid_certificates": Alias("client_kwargs.verify", _not),
    "connect_timeout": Alias("config_kwargs.connect_timeout", _seconds),
    "timeout": Alias("config_kwargs.read_timeout", _seconds),
    "request_timeout": Alias("config_kwargs.read_timeout", _seconds),
    "proxy_url": Alias("config_kwargs.proxies", _proxies),
    "user_agent": Alias("config_kwargs.user_agent"),
    # The endpoint's URL says it already: s3fs takes http:// as it takes https://.
    "allow_http": _IGNORED,
    # The bucket is in the table's URI; the rest tunes a client that is not used here.
    "bucket": _IGNORED,
    "s3_express": _IGNORED,
    "copy_if_not_exists": _IGNORED,
    "disable_tagging": _IGNORED,
    "imdsv1_fallback": _IGNORED,
    "metadata_endpoint": _IGNORED,
    "checksum_algorithm": _IGNORED,
    "download_retry_count": _IGNORED,
}
_GCS: Mapping[str, Alias] = {
    "service_account": Alias("token"),
    "service_account_path": Alias("token"),
    "application_credentials": Alias("token"),
    "service_account_key": Alias("token", _json),
    "storage_token": Alias("token"),
    "bearer_token": Alias("token"),
    "skip_signature": Alias("token", _anonymous_token),
    "base_url": Alias("endpoint_url"),
    "endpoint": Alias("endpoint_url"),
    "project_id": Alias("project"),
    "timeout": Alias("requests_timeout", _seconds),
    "request_timeout": Alias("requests_timeout", _seconds),
    "allow_http": _IGNORED,
    "bucket": _IGNORED,
    "bucket_name": _IGNORED,
    "download_retry_count": _IGNORED,
}
_AZURE: Mapping[str, Alias] = {
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
    "use_emulator": Alias("use_emulator", _flag),
    "skip_signature": Alias("anon", _flag),
    "connect_timeout": Alias("connection_timeout", _seconds),
    "timeout": Alias("read_timeout", _seconds),
    "request_timeout": Alias("read_timeout", _seconds),
    "allow_http": _IGNORED,
    "container_name": _IGNORED,
    "use_fabric_endpoint": _IGNORED,
    "download_retry_count": _IGNORED,
}

# The one account of Azurite, Azure's emulator; its key is the same everywhere.
_EMULATED_ACCOUNT = "devstoreaccount1"
_EMULATED_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

# The drivers' own names of their settings, only for hints on misspelt names.
_S3_OWN = "anon cache_regions client_kwargs config_kwargs default_block_size endpoint_url key max_concurrency"
_S3_OWN += " requester_pays s3_additional_kwargs secret session token use_ssl version_aware"
_GCS_OWN = (
    "access consistency default_location endpoint_url project requester_pays session_kwargs timeout token"
)
_AZURE_OWN = "account_host account_key account_name anon blocksize client_id client_secret connection_string"
_AZURE_OWN += " credential location_mode max_concurrency sas_token tenant_id"


@dataclass(frozen=True)
class Driver:
    """How one fsspec driver is set up.

    Attributes:
        prefix: what Lance may put in front of a name.
        aliases: Lance's names without that prefix.
        own: the driver's names.
        extra: what to install.
    """

    prefix: re.Pattern[str]
    aliases: Mapping[str, Alias]
    own: frozenset[str]
    extra: str


_S3_DRIVER = Driver(re.compile("aws_"), MappingProxyType(_S3), frozenset(_S3_OWN.split()), "spark-lance[s3]")
_GCS_DRIVER = Driver(
    re.compile("google_"), MappingProxyType(_GCS), frozenset(_GCS_OWN.split()), "spark-lance[gcs]"
)
_AZURE_DRIVER = Driver(
    re.compile("azure_(storage_)?"),
    MappingProxyType(_AZURE),
    frozenset(_AZURE_OWN.split()),
    "spark-lance[azure]",
)
DRIVERS: Mapping[str, Driver] = MappingProxyType(
    {
        "s3": _S3_DRIVER,
        "s3a": _S3_DRIVER,
        "gs": _GCS_DRIVER,
        "gcs": _GCS_DRIVER,
        "az": _AZURE_DRIVER,
        "abfs": _AZURE_DRIVER,
        "abfss": _AZURE_DRIVER,
    }
)
ALIASES: Mapping[str, Mapping[str, Alias]] = MappingProxyType(
    {protocol: driver.aliases for protocol, driver in DRIVERS.items()}
)


@dataclass(frozen=True)
class OwnOptions:
    """Options of this package, for every protocol.

    Attributes:
        manifest_store: URL of an external manifest store, see `io/manifest_store.py`.
        dynamodb_endpoint: URL of a DynamoDB that is not AWS's own.
        conditional_put: whether the store can create an object only if it is absent; "disabled" says no.
        retry: how often a failed request is sent again.
        bases: places besides the table's own, see `io/base_options.py`.
        durable: whether every new local file is forced to the disk; "fsync" says yes.
    """

    manifest_store: str | None = None
    dynamodb_endpoint: str | None = None
    conditional_put: bool = True
    retry: RetryPolicy | None = None
    bases: BaseOptions = field(default_factory=BaseOptions)
    durable: bool = False


_OWN_NAMES = frozenset(
    {
        "manifest_store",
        "dynamodb_endpoint",
        "conditional_put",
        "client_max_retries",
        "client_retry_timeout",
        "durability",
    }
)


def split_own(options: Mapping[str, Any]) -> tuple[OwnOptions, dict[str, Any]]:
    """Return the options that are for this package, and the rest.

    Raises:
        OptionError: a value cannot be used.
    """
    rest: dict[str, Any] = {}
    own: dict[str, Any] = {}
    about_bases: dict[str, Any] = {}
    for name, value in options.items():
        if is_base_option(name):
            about_bases[name] = value
            continue
        plain = name.lower().removeprefix("aws_")
        (own if plain in _OWN_NAMES else rest)[plain if plain in _OWN_NAMES else name] = value
    retry = None
    if own.keys() & {"client_max_retries", "client_retry_timeout"}:
        default = RetryPolicy.of_requests()
        retries = _converted(
            "client_max_retries", _count, own.get("client_max_retries", default.attempts - 1)
        )
        seconds = own.get("client_retry_timeout", default.total_seconds)
        timeout = _converted("client_retry_timeout", _seconds, seconds)
        retry = RetryPolicy(retries + 1, default.base_seconds, default.cap_seconds, timeout)
    way = str(own.get("conditional_put", "etag")).lower()
    if way not in ("etag", "disabled"):
        raise OptionError("storage option conditional_put is 'etag' or 'disabled'")
    durability = str(own.get("durability", "none")).lower()
    if durability not in ("none", "fsync"):
        raise OptionError("storage option durability is 'none' or 'fsync'")
    bases = read_base_options(about_bases)
    endpoint = own.get("dynamodb_endpoint")
    return OwnOptions(
        own.get("manifest_store"), endpoint, way == "etag", retry, bases, durability == "fsync"
    ), rest


def fsspec_options(protocol: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the fsspec file system; those that are not an alias pass unchanged.

    Doing it twice changes nothing more. A name that is neither Lance's nor the driver's, but close to one of
    them, is logged as a warning.

    Raises:
        OptionError: two names of one setting are given, or a value cannot be used.
    """
    driver = DRIVERS.get(protocol)
    if driver is None:
        return {name: _same(value) for name, value in options.items()}
    out: dict[str, Any] = {}
    for name, value in options.items():
        alias = _alias(driver, name, value)
        if alias is None:
            _hint(driver, name)
            alias = Alias(name)
        converted = _converted(name, alias.convert, value)
        if alias.target and converted is not None:
            _place(out, alias.target, converted, name)
    if driver is _AZURE_DRIVER:
        out = _azure_place(out)
    extra = out.get("s3_additional_kwargs", {})
    if "SSECustomerKey" in extra:
        extra.setdefault("SSECustomerAlgorithm", "AES256")
    return out


def _azure_place(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of adlfs with its own names for where the account is.

    The driver knows hosts that speak https and have nothing but the account. Every other endpoint, as those
    of emulators, becomes a connection string.

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
        _place(out, "account_host", parts.netloc, "endpoint")
        return out
    said = [("DefaultEndpointsProtocol", parts.scheme), ("BlobEndpoint", endpoint)]
    if "account_key" in out and "account_name" in out:
        said += [("AccountName", out["account_name"]), ("AccountKey", out["account_key"])]
    elif "sas_token" in out:
        said += [("SharedAccessSignature", str(out["sas_token"]).removeprefix("?"))]
    else:
        raise OptionError(
            f"storage option endpoint: {endpoint} also needs account_name and account_key, or sas_token"
        )
    _place(out, "connection_string", "".join(f"{name}={value};" for name, value in said), "endpoint")
    return out


def _alias(driver: Driver, name: str, value: Any) -> Alias | None:
    if name in driver.own and isinstance(value, dict):
        return Alias(name)
    plain = name.lower()
    match = driver.prefix.match(plain)
    alias = driver.aliases.get(plain[match.end() :] if match else plain)
    # A name that the driver has as well, as Azure's account_name, means the same to both.
    return alias if alias is not None and (match or name not in driver.own) else None


def _converted(name: str, convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except (ValueError, TypeError) as error:
        # The value itself may be a secret: the message only names what was expected.
        reason = str(error) if convert in (_flag, _not, _seconds, _count, _addressing) else "malformed value"
        raise OptionError(f"storage option {name!r}: {reason}") from None


def _place(out: dict[str, Any], target: str, value: Any, name: str) -> None:
    *outer, last = target.split(".")
    place = out
    for part in outer:
        place = place.setdefault(part, {})
    if isinstance(value, dict) and isinstance(place.get(last), dict):
        # client_kwargs={...} next to region=...: entries of one setting.
        for key, entry in value.items():
            _place(place[last], key, entry, name)
        return
    if last in place:
        raise OptionError(f"storage option {target!r} is given twice, once as {name!r}")
    place[last] = value


def _hint(driver: Driver, name: str) -> None:
    """Warn of a name that is unknown and looks like a known one."""
    if name in driver.own:
        return
    plain = driver.prefix.sub("", name.lower(), count=1)
    names = sorted({*driver.aliases, *driver.own, *_OWN_NAMES, ALLOWED_BASES, BASE_STORE_PARAMS})
    if close := difflib.get_close_matches(plain, names, n=1, cutoff=0.8):
        logger.warning("storage option %r is unknown; did you mean %r?", name, close[0])
