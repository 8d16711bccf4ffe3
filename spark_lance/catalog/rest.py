"""Client of a REST namespace service, with the operations of the Lance namespace specification.

The package `lance-namespace-urllib3-client` has a function per operation. Its parameters say how the request
is sent:

    id                  the identifier in the path: the parts of the name, joined by the delimiter
    <operation>_request the request, as JSON
    body                rows, as an Arrow IPC stream
    others              one query parameter for each field of the request with the same name

An entry `header.<name>` of the context of a request becomes a header. (Lance namespace specification, REST.)
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from spark_lance.catalog.names import SEPARATOR
from spark_lance.errors import OptionError
from spark_lance.io.failures import safe_cause
from spark_lance.redaction import redacted

HEADER = "header."
_TLS = ("tls.cert_file", "tls.key_file", "tls.ssl_ca_cert", "tls.assert_hostname")
_APIS = ("NamespaceApi", "TableApi", "DataApi", "TransactionApi")
# Error codes of the specification for responses without one, by HTTP status. Others are internal errors.
_CODES = {400: 13, 401: 16, 403: 15, 405: 0, 406: 0, 409: 14, 429: 21, 501: 0, 503: 17}
_UNAVAILABLE, _INTERNAL = 17, 18


class RestClient:
    """Calls the operations of a service.

    Args:
        properties: `uri`; `delimiter`, by default `$`; `header.<name>`, sent with each request;
            `tls.cert_file`, `tls.key_file`, `tls.ssl_ca_cert` and `tls.assert_hostname`.

    Raises:
        OptionError: a property is unknown, or `uri` is missing.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.uri = properties.get("uri", "")
        self.delimiter = properties.get("delimiter") or SEPARATOR
        unknown = [
            key for key in properties if key not in ("uri", "delimiter", *_TLS) and not key.startswith(HEADER)
        ]
        if unknown:
            raise OptionError(
                f"REST namespaces have no setting {unknown[0]!r}: set uri, delimiter, {HEADER}<name>, "
                f"{', '.join(_TLS)}"
            )
        if not self.uri:
            raise OptionError("a REST namespace needs the address of its service: set uri")
        self._secrets = dict(properties)

    def call(
        self, verb: str, request: Any, data: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Send a request and return the response; None if the operation has none.

        Args:
            verb: the operation, such as `describe_table`.
            request: the request of the package `lance-namespace`.
            data: rows as an Arrow IPC stream, for operations that write.
            headers: further headers of this request.

        Raises:
            lance_namespace.LanceNamespaceError: the service answers with an error, or not at all.
        """
        function = self._function(verb)
        arguments = self._arguments(function, request, data)
        all_headers = {**_context_headers(request), **(headers or {})}
        if all_headers:
            arguments["_headers"] = all_headers
        http = importlib.import_module("lance_namespace_urllib3_client")
        failures = importlib.import_module("urllib3.exceptions")
        try:
            return function(**arguments)
        except http.ApiException as error:
            raise _response_error(error) from safe_cause(error, self._secrets)
        except failures.HTTPError as error:
            reason = redacted(str(error), self._secrets)
            text = f"{redacted(self.uri, self._secrets)} does not answer: {reason}"
            raise _error(_UNAVAILABLE, text) from safe_cause(error, self._secrets)

    @cached_property
    def _apis(self) -> tuple[Any, ...]:
        http = importlib.import_module("lance_namespace_urllib3_client")
        configuration = http.Configuration(host=self.uri)
        for key in _TLS:
            if key in self._secrets:
                value = self._secrets[key]
                is_flag = key == "tls.assert_hostname"
                setattr(configuration, key[len("tls.") :], value.lower() != "false" if is_flag else value)
        client = http.ApiClient(configuration)
        for key, value in self._secrets.items():
            if key.startswith(HEADER):
                client.set_default_header(key[len(HEADER) :], value)
        return tuple(getattr(http, name)(client) for name in _APIS)

    def _function(self, verb: str) -> Callable[..., Any]:
        function: Callable[..., Any] | None = next(
            (call for api in self._apis if (call := getattr(api, verb, None)) is not None), None
        )
        if function is None:
            raise _error(0, f"Not supported: {verb}")
        return function

    def _arguments(self, function: Callable[..., Any], request: Any, data: bytes | None) -> dict[str, Any]:
        """Return the arguments of a function of the package for a request."""
        arguments: dict[str, Any] = {}
        for name in inspect.signature(function).parameters:
            if name == "id":
                arguments[name] = self.delimiter.join(request.id or ()) or self.delimiter
            elif name == "body":
                arguments[name] = data
            elif name == "request_body":
                arguments[name] = dict(request.metadata or {})
            elif name.endswith("_request"):
                arguments[name] = request
            elif name == "delimiter":
                arguments[name] = None if self.delimiter == SEPARATOR else self.delimiter
            elif not name.startswith("_"):
                value = getattr(request, name, None)
                arguments[name] = json.dumps(value) if isinstance(value, dict) else value
        return arguments


def _context_headers(request: Any) -> dict[str, str]:
    context: Mapping[str, str] = getattr(request, "context", None) or {}
    return {key[len(HEADER) :]: text for key, text in context.items() if key.startswith(HEADER)}


def _response_error(error: Any) -> Exception:
    """Return the package's error for an error response."""
    try:
        body = json.loads(error.body or "")
        code, text = int(body["code"]), body.get("error") or body.get("detail") or ""
    except (ValueError, KeyError, TypeError):
        return _error(_CODES.get(error.status, _INTERNAL), f"{error.status} {error.reason}")
    return _error(code, text)


def _error(code: int, text: str) -> Exception:
    result: Exception = importlib.import_module("lance_namespace").from_error_code(code, text)
    return result
