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
    """Return a value as it is; a mapping is copied."""
    return dict(value) if isinstance(value, dict) else value


def flag(value: Any) -> bool:
    """Return the truth value of a text."""
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
    """Return the seconds of a time such as 30s or 500ms."""
    match = _DURATION.fullmatch(str(value).strip().lower())
    if match is None:
        raise ValueError("expected a time such as 30s or 500ms")
    return float(match[1]) * _SECONDS[match[2]]


def count(value: Any) -> int:
    """Return a number that is not negative."""
    number = int(value)
    if number < 0:
        raise ValueError("expected a number from 0 on")
    return number


def addressing(value: Any) -> str:
    """Return S3's addressing style: whether the bucket is in the host name."""
    return "virtual" if flag(value) else "path"


def proxies(value: Any) -> dict[str, str]:
    """Return the proxy for both protocols."""
    return {"http": str(value), "https": str(value)}


def decoded(value: Any) -> bytes:
    """Return the bytes of a text in base64."""
    return base64.b64decode(str(value), validate=True)


def parsed(value: Any) -> Any:
    """Return the value of a JSON document."""
    return json.loads(value) if isinstance(value, str) else value


def anonymous_token(value: Any) -> str | None:
    """Return gcsfs's token for requests without credentials; None for a false value."""
    return "anon" if flag(value) else None


@dataclass(frozen=True)
class Alias:
    """The target of a setting.

    Attributes:
        target: the driver's name; with dots, an entry of a nested setting; "" for a setting that the driver
            does not need.
        convert: converts the user's value; a result of None sets nothing.
    """

    target: str
    convert: Callable[[Any], Any] = same


IGNORED = Alias("")


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

    def arguments(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return storage options as the driver's arguments; those that are not an alias pass unchanged.

        A name that is neither Lance's nor the driver's, but close to one of them, is logged as a warning.

        Raises:
            OptionError: two names of one setting are given, or a value cannot be used.
        """
        result: dict[str, Any] = {}
        for name, value in options.items():
            alias = _alias(self, name, value)
            if alias is None:
                _hint(self, name)
                alias = Alias(name)
            converted = _converted(name, alias.convert, value)
            if alias.target and converted is not None:
                place_option(result, alias.target, converted, name)
        return result


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
    if own.keys() & {"client_max_retries", "client_retry_timeout", "hedge_after"}:
        default = RetryPolicy.of_requests()
        retries = _converted("client_max_retries", count, own.get("client_max_retries", default.attempts - 1))
        patience = own.get("client_retry_timeout", default.total_seconds)
        timeout = _converted("client_retry_timeout", seconds, patience)
        hedge = _converted("hedge_after", seconds, own.get("hedge_after", default.hedge_seconds))
        retry = RetryPolicy(retries + 1, default.base_seconds, default.cap_seconds, timeout, hedge)
    way = str(own.get("conditional_put", "etag")).lower()
    if way not in ("etag", "disabled"):
        raise OptionError("storage option conditional_put is 'etag' or 'disabled'")
    durability = str(own.get("durability", "none")).lower()
    if durability not in ("none", "fsync"):
        raise OptionError("storage option durability is 'none' or 'fsync'")
    client = str(own.get("s3_client", "auto")).lower()
    if client not in ("auto", "obstore", "s3fs"):
        raise OptionError("storage option s3_client is 'auto', 'obstore' or 's3fs'")
    bases = read_base_options(about_bases)
    endpoint = own.get("dynamodb_endpoint")
    return OwnOptions(
        own.get("manifest_store"), endpoint, way == "etag", retry, bases, durability == "fsync", client
    ), rest


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage options as the arguments of a driver whose options have no other names."""
    return {name: same(value) for name, value in options.items()}


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
        reason = str(error) if convert in (flag, negated, seconds, count, addressing) else "malformed value"
        raise OptionError(f"storage option {name!r}: {reason}") from None


def place_option(out: dict[str, Any], target: str, value: Any, name: str) -> None:
    """Set an option of a driver.

    Args:
        out: the driver's options.
        target: its name; with dots, an entry of a nested setting.
        value: the new value.
        name: the user's name for it.

    Raises:
        OptionError: the option is set already.
    """
    *outer, last = target.split(".")
    place = out
    for part in outer:
        place = place.setdefault(part, {})
    if isinstance(value, dict) and isinstance(place.get(last), dict):
        # client_kwargs={...} next to region=...: entries of one setting.
        for key, entry in value.items():
            place_option(place[last], key, entry, name)
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
