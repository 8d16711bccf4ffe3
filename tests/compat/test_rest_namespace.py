"""`RestNamespace` of the stand-in and of pylance, with the REST server that pylance brings."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import lance.namespace
import lance_namespace as api
import pyarrow as pa
import pytest
from lance_namespace_urllib3_client.models.query_table_request_columns import QueryTableRequestColumns
from lance_namespace_urllib3_client.models.query_table_request_vector import QueryTableRequestVector

import spark_lance.compat.lance as ours
from spark_lance.catalog.service import ServiceCatalog
from spark_lance.compat.lance.namespace import DynamicContextProvider, RestNamespace
from spark_lance.errors import LanceError


def rows(*ids: int) -> bytes:
    table = pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([f"v{i}" for i in ids])})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[RestNamespace, Any]]:
    """Our client and pylance's client, each with a server over an empty folder."""
    adapter = lance.namespace.RestAdapter
    with (
        adapter("dir", {"root": str(tmp_path / "a")}, port=0) as first,
        adapter("dir", {"root": str(tmp_path / "b")}, port=0) as second,
    ):
        theirs: Any = lance.namespace.RestNamespace
        yield (
            RestNamespace(uri=f"http://127.0.0.1:{first.port}"),
            theirs(uri=f"http://127.0.0.1:{second.port}"),
        )


def outcome(namespace: Any, call: Callable[[Any], Any]) -> Any:
    """Return the response of a call without locations and times, or the class of its error."""
    try:
        response = call(namespace)
    except api.LanceNamespaceError as error:
        return type(error).__name__, int(error.code)
    if not hasattr(response, "model_dump"):
        return response
    unstable = {"location", "table_uri", "transaction_id", "context", "storage_options", "versions", "data"}
    return {key: value for key, value in response.model_dump().items() if key not in unstable}


T = ["db", "t"]
CALLS: dict[str, Callable[[Any], Any]] = {
    "no namespace": lambda at: at.describe_namespace(api.DescribeNamespaceRequest(id=["db"])),
    "table in no namespace": lambda at: at.create_table(api.CreateTableRequest(id=T), rows(1)),
    "create namespace": lambda at: at.create_namespace(
        api.CreateNamespaceRequest(id=["db"], properties={"a": "b"})
    ),
    "namespace again": lambda at: at.create_namespace(api.CreateNamespaceRequest(id=["db"])),
    "describe namespace": lambda at: at.describe_namespace(api.DescribeNamespaceRequest(id=["db"])),
    "exists": lambda at: at.namespace_exists(api.NamespaceExistsRequest(id=["db"])),
    "exists not": lambda at: at.namespace_exists(api.NamespaceExistsRequest(id=["nope"])),
    "create": lambda at: at.create_table(api.CreateTableRequest(id=T), rows(1, 2, 3)),
    "create again": lambda at: at.create_table(api.CreateTableRequest(id=T), rows(1)),
    "create root": lambda at: at.create_table(api.CreateTableRequest(id=["r"]), rows(1)),
    "exist ok": lambda at: at.create_table(api.CreateTableRequest(id=T, mode="ExistOk"), rows(9)),
    "no rows": lambda at: at.create_table(api.CreateTableRequest(id=["db", "u"]), b""),
    "not empty": lambda at: at.drop_namespace(api.DropNamespaceRequest(id=["db"])),
    "insert": lambda at: at.insert_into_table(api.InsertIntoTableRequest(id=T, mode="append"), rows(4, 5)),
    "count": lambda at: at.count_table_rows(api.CountTableRowsRequest(id=T)),
    "count some": lambda at: at.count_table_rows(api.CountTableRowsRequest(id=T, predicate="id > 3")),
    "merge": lambda at: at.merge_insert_into_table(
        api.MergeInsertIntoTableRequest(
            id=T, on=["id"], when_matched_update_all=True, when_not_matched_insert_all=True
        ),
        rows(5, 6),
    ),
    "update": lambda at: at.update_table(
        api.UpdateTableRequest(id=T, predicate="id = 1", updates=[["v", "'new'"]])
    ),
    "delete": lambda at: at.delete_from_table(api.DeleteFromTableRequest(id=T, predicate="id = 2")),
    "query": lambda at: (
        pa.ipc.open_file(
            at.query_table(
                api.QueryTableRequest(id=T, k=10, vector=api_vector(), filter="id > 4", columns=api_columns())
            ).data
        )
        .read_all()
        .sort_by("id")
        .to_pydict()
    ),
    "index": lambda at: at.create_table_scalar_index(
        api.CreateTableIndexRequest(id=T, column="id", index_type="BTREE")
    ),
    "indices": lambda at: len(at.list_table_indices(api.ListTableIndicesRequest(id=T)).indexes),
    "drop index": lambda at: at.drop_table_index(api.DropTableIndexRequest(id=T, index_name="id_idx")),
    "drop no index": lambda at: at.drop_table_index(api.DropTableIndexRequest(id=T, index_name="nope")),
    "tag": lambda at: at.create_table_tag(api.CreateTableTagRequest(id=T, tag="x", version=1)),
    "tag again": lambda at: at.create_table_tag(api.CreateTableTagRequest(id=T, tag="x", version=1)),
    "tag version": lambda at: at.get_table_tag_version(api.GetTableTagVersionRequest(id=T, tag="x")),
    "no tag": lambda at: at.get_table_tag_version(api.GetTableTagVersionRequest(id=T, tag="y")),
    "tags": lambda at: sorted(at.list_table_tags(api.ListTableTagsRequest(id=T)).tags),
    "versions": lambda at: len(at.list_table_versions(api.ListTableVersionsRequest(id=T)).versions),
    "version": lambda at: at.describe_table(api.DescribeTableRequest(id=T, version=99)),
    "no table": lambda at: at.describe_table(api.DescribeTableRequest(id=["db", "nope"])),
    "no rows counted": lambda at: at.count_table_rows(api.CountTableRowsRequest(id=["db", "nope"])),
    "details": lambda at: at.describe_table(api.DescribeTableRequest(id=T, load_detailed_metadata=True)),
    "stats": lambda at: at.get_table_stats(api.GetTableStatsRequest(id=T)).num_rows,
    "declare": lambda at: at.declare_table(api.DeclareTableRequest(id=["db", "later"])),
    "declared": lambda at: (
        at.describe_table(api.DescribeTableRequest(id=["db", "later"], check_declared=True)).is_only_declared
    ),
    "restore": lambda at: at.restore_table(api.RestoreTableRequest(id=T, version=1)),
    "count restored": lambda at: at.count_table_rows(api.CountTableRowsRequest(id=T)),
    "rename": lambda at: at.rename_table(api.RenameTableRequest(id=T, new_table_name="s")),
    "deregister": lambda at: at.deregister_table(api.DeregisterTableRequest(id=["r"])),
    "deregistered": lambda at: at.table_exists(api.TableExistsRequest(id=["r"])),
    "deregister again": lambda at: at.deregister_table(api.DeregisterTableRequest(id=["r"])),
    "register": lambda at: at.register_table(api.RegisterTableRequest(id=["r2"], location="r.lance")),
    "outside": lambda at: at.register_table(api.RegisterTableRequest(id=["r3"], location="/tmp/x.lance")),
    "registered": lambda at: at.count_table_rows(api.CountTableRowsRequest(id=["r2"])),
    "tables": lambda at: sorted(at.list_tables(api.ListTablesRequest(id=["db"])).tables),
    "all tables": lambda at: sorted(at.list_all_tables(api.ListTablesRequest()).tables),
    "drop": lambda at: at.drop_table(api.DropTableRequest(id=["r2"])),
    "dropped": lambda at: at.drop_table(api.DropTableRequest(id=["r2"])),
    "explain": lambda at: (
        "Lance"
        in at.explain_table_query_plan(
            api.ExplainTableQueryPlanRequest(
                id=["db", "s"], query=api.QueryTableRequest(k=1, vector=api_vector(), filter="id > 1")
            )
        )
    ),
}


def api_vector() -> Any:
    return QueryTableRequestVector(single_vector=[])


def api_columns() -> Any:
    return QueryTableRequestColumns(column_names=["id", "v"])


def test_each_operation_has_the_same_outcome(both: tuple[RestNamespace, Any]) -> None:
    outcomes = {name: (outcome(both[0], call), outcome(both[1], call)) for name, call in CALLS.items()}
    assert {name: pair for name, pair in outcomes.items() if pair[0] != pair[1]} == {}
    assert outcomes["count"][0] == {"count": 3}
    with pytest.raises(api.TableNotFoundError, match="Table not found: "):
        both[0].describe_table(api.DescribeTableRequest(id=["db", "nope"]))


def test_pages_of_names(both: tuple[RestNamespace, Any]) -> None:
    for namespace in both:
        for number in range(7):
            namespace.create_namespace(api.CreateNamespaceRequest(id=[f"n{number}"]))
            namespace.create_table(api.CreateTableRequest(id=["n0", f"t{number}"]), rows(number))
    pages: list[Any] = []
    for namespace in both:
        token, page_names = None, []
        while True:
            answer = namespace.list_tables(api.ListTablesRequest(id=["n0"], limit=3, page_token=token))
            page_names.append(answer.tables)
            token = answer.page_token
            if not token:
                break
        pages.append(page_names)
    assert pages[0] == pages[1]
    assert sorted(name for page in pages[0] for name in page) == [f"t{number}" for number in range(7)]
    uri = both[0]._client.uri
    catalog = ServiceCatalog("rest", (("uri", uri),))
    assert catalog.tables(("n0",)) == [("n0", f"t{number}") for number in range(7)]
    assert catalog.namespaces() == [(f"n{number}",) for number in range(7)]


def test_datasets_by_name(both: tuple[RestNamespace, Any]) -> None:
    namespace = both[0]
    namespace.create_namespace(api.CreateNamespaceRequest(id=["db"]))
    ours.write_dataset(pa.table({"id": [1, 2]}), namespace_client=namespace, table_id=T)
    ours.write_dataset(pa.table({"id": [3]}), namespace_client=namespace, table_id=T, mode="append")
    opened = ours.dataset(namespace_client=namespace, table_id=T)
    assert opened.to_table()["id"].to_pylist() == [1, 2, 3]
    assert api.connect("rest", {"uri": namespace._client.uri}).count_table_rows(
        api.CountTableRowsRequest(id=T)
    ) == api.CountTableRowsResponse(count=3)


class _Service(BaseHTTPRequestHandler):
    """Answers each request by the attributes `answer` and `status` of the server, and records it."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.requests.append((self.path, dict(self.headers), body))  # type: ignore[attr-defined]
        answer = json.dumps(self.server.answer).encode()  # type: ignore[attr-defined]
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def service() -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), _Service)
    server.requests, server.answer, server.status = [], {}, 200
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_credentials_of_a_service_reach_the_table(service: Any, tmp_path: Path) -> None:
    uri = f"http://127.0.0.1:{service.server_port}"
    vended = {"access_key_id": "k", "secret_access_key": "s", "expires_at_millis": "4102444800000"}
    service.answer = {"location": f"file://{tmp_path}/t", "storage_options": vended}
    entry = ServiceCatalog("rest", (("uri", uri),)).table(("db", "t"))
    assert dict(entry.storage_options) == vended
    path, _, body = service.requests[-1]
    assert path.startswith("/v1/table/db%24t/describe")
    assert json.loads(body)["vend_credentials"] is True


class _Tokens(DynamicContextProvider):
    def provide_context(self, info: dict[str, str]) -> dict[str, str]:
        return {"headers.Authorization": f"Bearer {info['operation']} {info['object_id']}", "other": "x"}


def test_headers_of_requests(service: Any) -> None:
    uri = f"http://127.0.0.1:{service.server_port}"
    namespace = RestNamespace(_Tokens(), **{"uri": uri, "header.x-key": "k", "delimiter": "."})
    request = api.DescribeTableRequest(id=T, context={"header.x-request": "r", "note": "n"})
    namespace.describe_table(request)
    path, headers, _ = service.requests[-1]
    assert path.startswith("/v1/table/db.t/describe")
    assert "delimiter=." in path
    received = {key.lower(): value for key, value in headers.items()}
    assert (received["x-key"], received["x-request"]) == ("k", "r")
    assert received["authorization"] == "Bearer describe_table db.t"


@pytest.mark.parametrize("code", list(api.ErrorCode))
def test_every_error_code(service: Any, code: Any) -> None:
    service.status, service.answer = 400, {"code": int(code), "error": "the reason"}
    uri = f"http://127.0.0.1:{service.server_port}"
    with pytest.raises(api.LanceNamespaceError, match="the reason") as failure:
        RestNamespace(uri=uri).describe_table(api.DescribeTableRequest(id=T))
    assert failure.value.code == code
    with pytest.raises(LanceError, match="the reason"):
        ServiceCatalog("rest", (("uri", uri),)).table(("db", "t"))


@pytest.mark.parametrize(
    ("status", "code"), [(401, 16), (403, 15), (429, 21), (503, 17), (500, 18), (418, 18)]
)
def test_errors_without_a_code(service: Any, status: int, code: int) -> None:
    service.status, service.answer = status, "no object"
    with pytest.raises(api.LanceNamespaceError, match=str(status)) as failure:
        RestNamespace(uri=f"http://127.0.0.1:{service.server_port}").table_exists(
            api.TableExistsRequest(id=T)
        )
    assert failure.value.code == code


def test_settings_and_unreachable_services() -> None:
    with pytest.raises(api.InvalidInputError, match="uri"):
        RestNamespace(root="/x")
    nobody = RestNamespace(uri="http://127.0.0.1:9")
    assert nobody.namespace_id() == 'RestNamespace { endpoint: "http://127.0.0.1:9", delimiter: "$" }'
    with pytest.raises(api.ServiceUnavailableError, match="does not answer"):
        nobody.list_tables(api.ListTablesRequest(id=[]))
