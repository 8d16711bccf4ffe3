"""The identity of a process at a store: a digest of everything that authorises its requests.

Cached data of a store is only for users who could read it. So the same path, opened with other credentials or
at another endpoint, is another cache entry. The digest covers the driver's options, the additions of fsspec's
configuration, and the environment variables that hold credentials for drivers.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from spark_lance.io.locations import IN_REACH
from spark_lance.redaction import is_secret_name

# So that nobody can find out a password from a digest.
_KEY = os.urandom(32)
_CLOUDS = ("AWS_", "AZURE_", "BOTO_", "FSSPEC_", "GCSFS_", "GOOGLE_")
_PLAIN = (str, bytes, int, float, bool, type(None))

_numbers = itertools.count()
# Objects among the options, such as credentials of a vendor's package, whose content is not known.
_objects: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def identity_of(protocol: str, options: Mapping[str, Any]) -> str:
    """Return the digest for a store's protocol and options; other processes have other digests."""
    digest = hashlib.blake2b(key=_KEY, digest_size=16)
    for part in _parts((protocol, options)):
        digest.update(part)
    if protocol not in IN_REACH:
        fsspec = sys.modules.get("fsspec.config")
        for part in _parts(fsspec.conf if fsspec is not None else {}):
            digest.update(part)
        digest.update(environment_digest().encode())
    return digest.hexdigest()


def environment_digest() -> str:
    """Return a digest of the environment variables that may hold credentials."""
    named = {
        name: value for name, value in os.environ.items() if name.startswith(_CLOUDS) or is_secret_name(name)
    }
    digest = hashlib.blake2b(key=_KEY, digest_size=16)
    for part in _parts(named):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield the bytes of a value; different values have different ones."""
    if isinstance(value, Mapping):
        yield b"{%d" % len(value)
        for name in sorted(value, key=str):
            yield from _parts(name)
            yield from _parts(value[name])
    elif isinstance(value, (list, tuple)):
        yield b"[%d" % len(value)
        for item in value:
            yield from _parts(item)
    elif isinstance(value, _PLAIN):
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        yield b"%s %d " % (type(value).__name__.encode(), len(data))
        yield data
    else:
        yield b"object %d" % _number(value)


def _number(value: object) -> int:
    """Return a number that no other object has; another one each time if the object cannot be remembered."""
    try:
        return _objects.setdefault(value, next(_numbers))
    except TypeError:
        return next(_numbers)
