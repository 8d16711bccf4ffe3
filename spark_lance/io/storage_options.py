"""Storage options: maps the option names of other Lance implementations to fsspec's.

Lance names settings as `aws_region`, `region`, `google_service_account`, `azure_storage_account_name`, ...;
the drivers s3fs, gcsfs and adlfs have their own names. Both are accepted, Lance's names also in upper case.
A few options configure this package and are not passed to the driver.
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

from spark_lance.errors import OptionError
from spark_lance.io.base_options import (
    ALLOWED_BASES,
    BASE_STORE_PARAMS,
    BaseOptions,
    is_base_option,
    read_base_options,
)
from spark_lance.io.retry import RetryPolicy

logger = logging.getLogger(__name__)

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|)")
_SECONDS = MappingProxyType({"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0})


def same(value: Any) -> Any:
    """Return a value unchanged; a mapping is copied."""
    return dict(value) if isinstance(value, dict) else value


def flag(value: Any) -> bool:
    """Return the boolean that a text represents."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise ValueError("expected true or false")
    return text in _TRUE


def negated(value: Any) -> bool:
    """Return the opposite of `flag`."""
    return not flag(value)


def seconds(value: Any) -> float:
    """Return the seconds of a duration such as 30s or 500ms."""
    match = _DURATION.fullmatch(str(value).strip().lower())
    if match is None:
        raise ValueError("expected a time such as 30s or 500ms")
    return float(match[1]) * _SECONDS[match[2]]


def count(value: Any) -> int:
    """Return a non-negative integer."""
    number = int(value)
    if number < 0:
        raise ValueError("expected a number from 0 on")
    return number


def addressing(value: Any) -> str:
    """Return S3's addressing style: "virtual" if the bucket is in the host name, else "path"."""
    return "virtual" if flag(value) else "path"


def proxies(value: Any) -> dict[str, str]:
    """Return the proxies of HTTP and HTTPS."""
    return {"http": str(value), "https": str(value)}


def decoded(value: Any) -> bytes:
    """Return the decoded bytes of a base64 text."""
    return base64.b64decode(str(value), validate=True)


def parsed(value: Any) -> Any:
    """Return the value of a JSON document."""
    return json.loads(value) if isinstance(value, str) else value


def anonymous_token(value: Any) -> str | None:
    """Return gcsfs's token for requests without credentials; None for a false value."""
    return "anon" if flag(value) else None


@dataclass(frozen=True)
class Alias:
    """The driver's option that a Lance option sets.

    Attributes:
        target: name of the driver's option. Dots separate the keys of a nested option. "" ignores the option.
        convert: converts the user's value; None sets nothing.
    """

    target: str
    convert: Callable[[Any], Any] = same


IGNORED = Alias("")


@dataclass(frozen=True)
class Driver:
    """The option names of one fsspec driver.

    Attributes:
        prefix: optional prefix of Lance's names.
        aliases: Lance's names without the prefix -> the driver's options.
        own: the driver's names.
        extra: package to install for the driver.
    """

    prefix: re.Pattern[str]
    aliases: Mapping[str, Alias]
    own: frozenset[str]
    extra: str

    def arguments(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return storage options as the driver's arguments. Names without an alias pass unchanged.

        An unknown name that is similar to a known one is logged as a warning.

        Raises:
            OptionError: one option is set by two names, or a value is invalid.
        """
        result: dict[str, Any] = {}
        for name, value in options.items():
            alias = _alias(self, name, value)
            if alias is None:
                _warn_if_misspelled(self, name)
                alias = Alias(name)
            converted = _convert_value(name, alias.convert, value)
            if alias.target and converted is not None:
                place_option(result, alias.target, converted, name)
        return result


@dataclass(frozen=True)
class OwnOptions:
    """Options of this package, for every protocol.

    Attributes:
        manifest_store: URL of an external manifest store, see `io/manifest_store.py`.
        dynamodb_endpoint: URL of a DynamoDB outside AWS.
        conditional_put: whether the store can create an object only if it is absent; false for
            "disabled".
        retry: retry policy of requests; None for the default.
        bases: options of locations outside the table, see `io/base_options.py`.
        durable: whether every new local file is flushed to the disk; true for "fsync".
        s3_client: "obstore" or "s3fs"; "auto" uses obstore if it is installed and suits the options.
    """

    manifest_store: str | None = None
    dynamodb_endpoint: str | None = None
    conditional_put: bool = True
    retry: RetryPolicy | None = None
    bases: BaseOptions = field(default_factory=BaseOptions)
    durable: bool = False
    s3_client: str = "auto"


_OWN_NAMES = frozenset(
    {
        "manifest_store",
        "dynamodb_endpoint",
        "conditional_put",
        "client_max_retries",
        "client_retry_timeout",
        "hedge_after",
        "durability",
        "s3_client",
    }
)


def split_own(options: Mapping[str, Any]) -> tuple[OwnOptions, dict[str, Any]]:
    """Return this package's own options, and the remaining options.

    Raises:
        OptionError: a value is invalid.
    """
    rest: dict[str, Any] = {}
    own: dict[str, Any] = {}
    location_options: dict[str, Any] = {}
    for name, value in options.items():
        if is_base_option(name):
            location_options[name] = value
            continue
        plain = name.lower().removeprefix("aws_")
        (own if plain in _OWN_NAMES else rest)[plain if plain in _OWN_NAMES else name] = value
    retry = None
    if own.keys() & {"client_max_retries", "client_retry_timeout", "hedge_after"}:
        default = RetryPolicy.of_requests()
        retries = _convert_value(
            "client_max_retries", count, own.get("client_max_retries", default.attempts - 1)
        )
        patience = own.get("client_retry_timeout", default.total_seconds)
        timeout = _convert_value("client_retry_timeout", seconds, patience)
        hedge = _convert_value("hedge_after", seconds, own.get("hedge_after", default.hedge_seconds))
        retry = RetryPolicy(retries + 1, default.base_seconds, default.cap_seconds, timeout, hedge)
    put_mode = str(own.get("conditional_put", "etag")).lower()
    if put_mode not in ("etag", "disabled"):
        raise OptionError("storage option conditional_put is 'etag' or 'disabled'")
    durability = str(own.get("durability", "none")).lower()
    if durability not in ("none", "fsync"):
        raise OptionError("storage option durability is 'none' or 'fsync'")
    client = str(own.get("s3_client", "auto")).lower()
    if client not in ("auto", "obstore", "s3fs"):
        raise OptionError("storage option s3_client is 'auto', 'obstore' or 's3fs'")
    bases = read_base_options(location_options)
    endpoint = own.get("dynamodb_endpoint")
    return OwnOptions(
        own.get("manifest_store"), endpoint, put_mode == "etag", retry, bases, durability == "fsync", client
    ), rest


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage options as the arguments of a driver without aliases."""
    return {name: same(value) for name, value in options.items()}


def _alias(driver: Driver, name: str, value: Any) -> Alias | None:
    if name in driver.own and isinstance(value, dict):
        return Alias(name)
    plain = name.lower()
    match = driver.prefix.match(plain)
    alias = driver.aliases.get(plain[match.end() :] if match else plain)
    # A name that Lance and the driver share, such as Azure's account_name, has the same meaning.
    return alias if alias is not None and (match or name not in driver.own) else None


def _convert_value(name: str, convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except (ValueError, TypeError) as error:
        # The value may be a secret, so the message contains only what was expected.
        reason = str(error) if convert in (flag, negated, seconds, count, addressing) else "malformed value"
        raise OptionError(f"storage option {name!r}: {reason}") from None


def place_option(out: dict[str, Any], target: str, value: Any, name: str) -> None:
    """Set an option of a driver.

    Args:
        out: the driver's options.
        target: name of the option. Dots separate the keys of a nested option.
        value: the new value.
        name: the name that the user wrote, for messages.

    Raises:
        OptionError: the option is set already.
    """
    *outer, last = target.split(".")
    mapping = out
    for part in outer:
        mapping = mapping.setdefault(part, {})
    if isinstance(value, dict) and isinstance(mapping.get(last), dict):
        # client_kwargs={...} and region=... set entries of the same option.
        for key, entry in value.items():
            place_option(mapping[last], key, entry, name)
        return
    if last in mapping:
        raise OptionError(f"storage option {target!r} is given twice, once as {name!r}")
    mapping[last] = value


def _warn_if_misspelled(driver: Driver, name: str) -> None:
    """Log a warning if a name is unknown but similar to a known one."""
    if name in driver.own:
        return
    plain = driver.prefix.sub("", name.lower(), count=1)
    names = sorted({*driver.aliases, *driver.own, *_OWN_NAMES, ALLOWED_BASES, BASE_STORE_PARAMS})
    if close := difflib.get_close_matches(plain, names, n=1, cutoff=0.8):
        logger.warning("storage option %r is unknown; did you mean %r?", name, close[0])
