"""Storage options: the names that users of other Lance implementations know, turned into fsspec's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from spark_lance.errors import OptionError

__all__ = ["S3_ALIASES", "fsspec_options"]

# Name (with or without "aws_") -> name of s3fs; a dotted name is an entry of a nested setting.
S3_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "access_key_id": "key",
        "secret_access_key": "secret",
        "session_token": "token",
        "endpoint": "endpoint_url",
        "endpoint_url": "endpoint_url",
        "region": "client_kwargs.region_name",
        "default_region": "client_kwargs.region_name",
        "skip_signature": "anon",
        "profile": "profile",
    }
)
_S3 = frozenset({"s3", "s3a"})
# An endpoint's URL says it already: s3fs takes http:// as it takes https://.
_NEEDLESS = frozenset({"allow_http"})


def fsspec_options(protocol: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the fsspec file system; those that are not an alias pass unchanged.

    Raises:
        OptionError: two names of one setting are given.
    """
    if protocol not in _S3:
        return dict(options)
    out: dict[str, Any] = {}
    for name, value in options.items():
        plain = name.lower().removeprefix("aws_")
        target = S3_ALIASES.get(plain, name)
        if plain in _NEEDLESS:
            continue
        head, _, entry = target.partition(".")
        place = out.setdefault(head, {}) if entry else out
        if (entry or head) in place:
            raise OptionError(f"storage option {target!r} is given twice, once as {name!r}")
        place[entry or head] = dict(value) if isinstance(value, dict) else value
    return out
