"""`lance.namespace.RestNamespace`: a REST service of tables, with the API of `lance-namespace`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import lance_namespace as api

from spark_lance.catalog.rest import RestClient
from spark_lance.errors import OptionError

__all__ = ["DynamicContextProvider", "RestNamespace"]

_HEADERS = "headers."
# Operations whose requests and responses are dicts in pylance, and the models of the requests.
_DICTS: dict[str, Any] = {
    "create_table_version": api.CreateTableVersionRequest,
    "describe_table_version": api.DescribeTableVersionRequest,
    "batch_delete_table_versions": api.BatchDeleteTableVersionsRequest,
}
# Operations whose responses in HTTP are no models, and the models to return.
_RESPONSES: dict[str, Callable[[Any], Any]] = {
    "namespace_exists": lambda _: api.NamespaceExistsResponse(),
    "table_exists": lambda _: api.TableExistsResponse(),
    "count_table_rows": lambda count: api.CountTableRowsResponse(count=count),
    "query_table": lambda data: api.QueryTableResponse(data=bytes(data)),
    "update_table_schema_metadata": lambda metadata: api.UpdateTableSchemaMetadataResponse(metadata=metadata),
}


class DynamicContextProvider(ABC):
    """Adds entries to each request, such as a header with a fresh token."""

    @abstractmethod
    def provide_context(self, info: dict[str, str]) -> dict[str, str]:
        """Return entries for a request. `info` has the keys `operation` and `object_id`."""


class RestNamespace(api.LanceNamespace):
    """The tables and namespaces of a REST service.

    Args:
        context_provider: its entries `headers.<name>` become headers of each request.
        properties: `uri`; `delimiter`, `header.<name>` and `tls.<name>`, see `RestClient`.

    Raises (all methods): the errors of `lance_namespace`.
    """

    def __init__(self, context_provider: DynamicContextProvider | None = None, **properties: object) -> None:
        texts = {str(key): str(value) for key, value in properties.items()}
        try:
            self._client = RestClient(texts)
        except OptionError as error:
            raise api.InvalidInputError(str(error)) from error
        self._context_provider = context_provider

    def namespace_id(self) -> str:
        """Return the id of the namespace: its address, in the form of pylance."""
        return (
            f'RestNamespace {{ endpoint: "{self._client.uri.rstrip("/")}", '
            f'delimiter: "{self._client.delimiter}" }}'
        )

    def __repr__(self) -> str:
        return f"RestNamespace({self.namespace_id()})"

    def _call(self, verb: str, request: Any, data: bytes | None) -> Any:
        headers: dict[str, str] = {}
        if self._context_provider is not None:
            name = self._client.delimiter.join(getattr(request, "id", None) or ())
            info = {"operation": verb, "object_id": name}
            context = self._context_provider.provide_context(info)
            headers = {
                key[len(_HEADERS) :]: text for key, text in context.items() if key.startswith(_HEADERS)
            }
        try:
            response = self._client.call(verb, request, data, headers)
        except api.LanceNamespaceError as error:
            # pylance's texts begin with the kind of the error, such as "Table not found".
            words = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(error).__name__.removesuffix("Error"))
            raise type(error)(f"{words.capitalize()}: {error}") from error.__cause__
        return _RESPONSES[verb](response) if verb in _RESPONSES else response


def _operation(verb: str) -> Callable[..., Any]:
    """Return the method of an operation."""

    def operation(self: RestNamespace, request: Any, request_data: bytes | None = None) -> Any:
        if not isinstance(request, dict):
            return self._call(verb, request, request_data)
        if verb == "query_table":
            return self._call(verb, api.QueryTableRequest.from_dict(request), None)
        return self._call(verb, _DICTS[verb].from_dict(request), None).to_dict()

    operation.__name__ = verb
    operation.__doc__ = f"Send `{verb}` to the service."
    return operation


for _verb, _member in list(vars(api.LanceNamespace).items()):
    if callable(_member) and not _verb.startswith("_") and _verb != "namespace_id":
        setattr(RestNamespace, _verb, _operation(_verb))
