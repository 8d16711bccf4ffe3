"""Find and hide secrets in error messages, logs and options.

Every error of this package passes through `redacted`. All code that prints options, locations or errors of
other libraries uses it, too. It recognises a secret in three ways:

    by the text around it    `password=`, `"private_key": `, `Bearer `, a user with a password in a URL
    by its form              AWS keys, private keys, JSON web tokens
    by its value             the secret values among the caller's options
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

# The replacement for a secret.
HIDDEN = "***"
# Parts of option and setting names that have secret values. Java uses this regular expression, too.
_CERTAIN_NAMES = (
    r"(?i)secret|passw|pwd|token(?!iz)|access[._-]?key|account[._-]?key|api[._-]?key|private[._-]?key"
    r"|customer[._-]?key|service_account|credential|connection[._-]?string|sas[._-]|[._-]sas"
    r"|signature|(^|[._-])sig$|authorization|(^|[._-])headers?([._-]|$)|cookie|proxy|kwargs|(^|[._-])session$"
)
_SECRET_NAME = re.compile(_CERTAIN_NAMES + r"|(^|[._-])key(_base64|_json)?$")
# For Spark, which also applies it to table properties such as `primary_key`: there, `key` is secret only in a
# storage option. Spark also searches values for it, and a value may be a URL with a password.
SECRET_NAMES = _CERTAIN_NAMES + r"|storage\.([\w.-]*[._-])?key(_base64|_json)?$|://[^/@\s:]*:[^/@\s]+@"
# Nested settings of drivers: only some of their entries are secret.
_NESTED = frozenset({"client_kwargs", "config_kwargs", "s3_additional_kwargs", "session_kwargs"})
_SHORTEST, _SHORTEST_APART = 6, 3

# Name endings in free text. They are stricter, because any word of a text could be a name.
_TEXT_NAME = re.compile(
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|private_?key(?:_?id)?|credentials?|signature|sig|authorization"
    r"|access_?key(?:_?id)?|account_?key|api_?key|customer_?key|sas|connection_?string)$",
    re.IGNORECASE,
)
# A name and the separator before its value. A match can begin only at the start of a name, at a quote, or
# after `{` or `,`, so the search takes linear time.
_ASSIGNED = re.compile(r"(?<![\w.-])(?P<name>[\w.-]+)\s?=\s?(?!=)")
_ENTRY = re.compile(r"(?P<mark>\\?[\"'])(?P<name>[\w.-]+)(?P=mark)\s?[:=]\s?(?=\\?[\"'])")
_BARE_ENTRY = re.compile(r"(?<=[{,])\s?(?P<mark>\\?[\"'])(?P<name>[\w.-]+)(?P=mark)\s?:\s?(?![\"'\\])")
_VALUE = re.compile(
    r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\\\"(?:(?!\\\").)*\\\""
    r"|\\?[\"']?[^\s&;,\"'(){}\[\]<>|]+",
    re.DOTALL,
)
_HEADER = re.compile(
    r"((?:authorization|x-api-key|x-amz-security-token|cookie)[\"']?\s*[:=]\s*[\"']?)([^\"'\r\n,;]+)",
    re.IGNORECASE,
)
_USER = re.compile(r"(//)[^/@\s:\"'?#]*:[^/\s\"'?#]*(?=@)")
_BEARER = re.compile(r"\b(bearer )([\w.~+/=-]+)", re.IGNORECASE)
_BASIC = re.compile(r"\b(basic )([A-Za-z0-9+/_-]{4,}={0,2})", re.IGNORECASE)
_FORMS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|(?<![\w-])eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"
    r"|\bya29\.[\w.-]+"
    r"|\bgh[pousr]_\w{20,}",
    re.DOTALL,
)


def is_secret_name(name: str) -> bool:
    """Return whether an option with this name may have a secret value."""
    return _SECRET_NAME.search(name) is not None


def redacted(text: str, options: Mapping[str, Any] | None = None) -> str:
    """Return a text with its secrets hidden. The function is idempotent.

    Args:
        text: a message, a URI or a log line.
        options: options of the caller. Their secret values are hidden wherever the text contains them.
    """
    for secret in sorted(set(_secrets(options or {})), key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, HIDDEN)
        else:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
    text = _FORMS.sub(HIDDEN, text)
    text = _USER.sub(rf"\1{HIDDEN}", text)
    text = _HEADER.sub(_kept_scheme, text)
    for pattern in (_ENTRY, _BARE_ENTRY, _ASSIGNED):
        text = _without_values(text, pattern)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    return _BASIC.sub(lambda match: f"{match[1]}{HIDDEN}" if _is_login(match[2]) else match[0], text)


def shown_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for display: possible secret values are hidden, other strings are redacted."""
    result: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            result[name] = (
                shown_options(value) if name in _NESTED or not is_secret_name(str(name)) else HIDDEN
            )
        elif is_secret_name(str(name)):
            result[name] = HIDDEN
        else:
            result[name] = redacted(value) if isinstance(value, str) else value
    return result


def _without_values(text: str, pattern: re.Pattern[str]) -> str:
    """Return a text that hides each value after a secret name that `pattern` matches."""
    parts: list[str] = []
    copied = position = 0
    while match := pattern.search(text, position):
        position = match.end()
        if _TEXT_NAME.search(match["name"]) is None:
            continue
        value = _VALUE.match(text, position)
        if value is not None:
            parts += text[copied:position], _hidden(value[0])
            copied = position = value.end()
    return "".join([*parts, text[copied:]])


def _hidden(value: str) -> str:
    """Return the replacement for a value, in the same quotes."""
    for mark in ('\\"', '"', "'"):
        if value.startswith(mark) and value.endswith(mark) and len(value) >= 2 * len(mark):
            return f"{mark}{HIDDEN}{mark}"
    return HIDDEN


def _kept_scheme(match: re.Match[str]) -> str:
    scheme, space, _ = match[2].strip().partition(" ")
    return f"{match[1]}{scheme} {HIDDEN}" if space else f"{match[1]}{HIDDEN}"


def _is_login(text: str) -> bool:
    """Return whether a text encodes a user and a password, as in HTTP basic authentication."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return b":" in base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False


def _secrets(options: Mapping[str, Any], inside: bool = False) -> Iterator[str]:
    """Yield the secret values of options, as they are and in their escaped or quoted spellings."""
    for name, value in options.items():
        secret = inside or is_secret_name(str(name))
        if isinstance(value, Mapping):
            yield from _secrets(value, secret and name not in _NESTED)
        elif secret and isinstance(value, (list, tuple)):
            yield from _secrets({str(at): item for at, item in enumerate(value)}, True)
        elif secret and isinstance(value, (str, bytes)):
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            yield from _spellings(text)
            if text.lstrip().startswith(("{", "[")):
                yield from _inner(text)


def _inner(text: str) -> Iterator[str]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return
    yield from _secrets(parsed if isinstance(parsed, Mapping) else {"": parsed})


def _spellings(text: str) -> Iterator[str]:
    if len(text) < _SHORTEST_APART or text.lower() in ("true", "false", "anon"):
        return
    yield from {text, json.dumps(text)[1:-1], repr(text)[1:-1], quote(text, safe=""), quote_plus(text)}
