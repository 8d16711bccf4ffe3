"""The identity of a process towards a store: a digest of everything that authorises its requests.

Cached data must only be returned to users who could read it. So the same path has a separate cache entry for
each set of credentials and each endpoint. The digest covers the driver's options, fsspec's configuration, and
the environment variables that hold credentials for drivers.
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

# A random key, so that a password cannot be derived from a digest.
_KEY = os.urandom(32)
_CLOUDS = ("AWS_", "AZURE_", "BOTO_", "FSSPEC_", "GCSFS_", "GOOGLE_")
_PLAIN = (str, bytes, int, float, bool, type(None))

_numbers = itertools.count()
# Numbers of opaque option values, such as a cloud vendor's credential objects.
_object_numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def store_digest(protocol: str, options: Mapping[str, Any]) -> str:
    """Return the digest of a store's protocol and options. It differs between processes."""
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
    variables = {
        name: value for name, value in os.environ.items() if name.startswith(_CLOUDS) or is_secret_name(name)
    }
    digest = hashlib.blake2b(key=_KEY, digest_size=16)
    for part in _parts(variables):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield the bytes of a value. Different values have different bytes."""
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
        yield b"object %d" % _number_of_object(value)


def _number_of_object(value: object) -> int:
    """Return a number that is unique to an object. An unhashable object gets a new number on every call."""
    try:
        return _object_numbers.setdefault(value, next(_numbers))
    except TypeError:
        return next(_numbers)
