"""Names of storage options: Lance's and the drivers' are understood, what is ours stays here."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.errors import OptionError
from spark_lance.io.cloud import CloudStore
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.storage_options import Driver, OwnOptions, split_own
from spark_lance.io.store import STORES, store_class

DRIVERS: dict[str, Driver] = {
    protocol: kind.driver
    for protocol, kind in ((protocol, store_class(protocol)) for protocol in STORES)
    if issubclass(kind, CloudStore)
}


def fsspec_options(protocol: str, options: dict[str, Any]) -> dict[str, Any]:
    return store_class(protocol).driver_options(options)


def test_lance_names_become_those_of_s3fs() -> None:
    given = {
        "aws_access_key_id": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "aws_session_token": "t",
        "aws_region": "r",
        "aws_endpoint": "http://x",
        "aws_skip_signature": "false",
        "virtual_hosted_style_request": "true",
        "aws_server_side_encryption": "aws:kms",
        "aws_sse_kms_key_id": "id",
        "aws_sse_bucket_key_enabled": "true",
        "request_payer": "true",
        "allow_invalid_certificates": "true",
        "connect_timeout": "500ms",
        "timeout": "30s",
    }
    assert fsspec_options("s3", {**given, "allow_http": True}) == {
        "key": "a",
        "secret": "b",
        "token": "t",
        "client_kwargs": {"region_name": "r", "verify": False},
        "endpoint_url": "http://x",
        "anon": False,
        "requester_pays": True,
        "config_kwargs": {"s3": {"addressing_style": "virtual"}, "connect_timeout": 0.5, "read_timeout": 30},
        "s3_additional_kwargs": {
            "ServerSideEncryption": "aws:kms",
            "SSEKMSKeyId": "id",
            "BucketKeyEnabled": True,
        },
    }


def test_a_customers_key_names_its_algorithm() -> None:
    options = fsspec_options("s3", {"aws_sse_customer_key_base64": base64.b64encode(b"k" * 32).decode()})
    assert options == {
        "s3_additional_kwargs": {"SSECustomerKey": b"k" * 32, "SSECustomerAlgorithm": "AES256"}
    }


def test_lance_names_become_those_of_gcsfs() -> None:
    assert fsspec_options("gs", {"google_service_account": "/a.json", "project_id": "p"}) == {
        "token": "/a.json",
        "project": "p",
    }
    assert fsspec_options("gs", {"service_account_key": '{"type": "x"}'}) == {"token": {"type": "x"}}
    assert fsspec_options("gcs", {"google_skip_signature": "true"}) == {"token": "anon"}
    assert fsspec_options("gcs", {"google_skip_signature": "false"}) == {}


def test_lance_names_become_those_of_adlfs() -> None:
    given = {
        "azure_storage_account_name": "n",
        "AZURE_STORAGE_ACCOUNT_KEY": "k",
        "azure_client_id": "i",
        "tenant_id": "t",
        "azure_endpoint": "https://n.blob.example",
    }
    assert fsspec_options("az", given) == {
        "account_name": "n",
        "account_key": "k",
        "client_id": "i",
        "tenant_id": "t",
        "account_host": "n.blob.example",
    }
    assert fsspec_options("abfss", {"azure_storage_sas_key": "s"}) == {"sas_token": "s"}


def test_azures_other_endpoints_become_connection_strings() -> None:
    place = "http://127.0.0.1:10000/n"
    given = {"account_name": "n", "account_key": "k", "azure_storage_endpoint": place}
    said = f"DefaultEndpointsProtocol=http;BlobEndpoint={place};"
    result = fsspec_options("az", given)
    assert result == {
        "account_name": "n",
        "account_key": "k",
        "connection_string": f"{said}AccountName=n;AccountKey=k;",
    }
    assert fsspec_options("az", result) == result
    result = fsspec_options("az", {"sas_token": "?sig=x", "endpoint": place})
    assert result["connection_string"] == f"{said}SharedAccessSignature=sig=x;"
    emulated = fsspec_options("az", {"azure_storage_use_emulator": "true"})
    assert "BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;" in emulated["connection_string"]
    assert fsspec_options("az", {"use_emulator": "false"}) == {}
    with pytest.raises(OptionError, match="account_key, or sas_token"):
        fsspec_options("az", {"account_name": "n", "client_id": "i", "endpoint": place})
    with pytest.raises(OptionError, match="given twice"):
        fsspec_options("az", {"account_host": "a.example", "endpoint": "https://b.example"})


@pytest.mark.parametrize("protocol", sorted(DRIVERS))
def test_twice_is_as_once(protocol: str) -> None:
    samples = {"sse_customer_key_base64": "aGVsbG8=", "service_account_key": "{}"}
    for name, alias in DRIVERS[protocol].aliases.items():
        for value in (samples.get(name, "true"), "30s"):
            try:
                once = fsspec_options(protocol, {name: value})
            except OptionError:
                continue
            assert fsspec_options(protocol, once) == once, alias


@pytest.mark.parametrize("protocol", sorted(DRIVERS))
def test_the_drivers_own_names_pass(protocol: str) -> None:
    for name in DRIVERS[protocol].own:
        assert fsspec_options(protocol, {name: "x"}) == {name: "x"}


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=4))
def test_other_file_systems_get_their_own_names(options: dict[str, str]) -> None:
    assert fsspec_options("sftp", options) == options


def test_nested_settings_are_joined_and_not_changed() -> None:
    client = {"verify": False}
    expected = {"client_kwargs": {"verify": False, "region_name": "r"}}
    assert fsspec_options("s3", {"client_kwargs": client, "region": "r"}) == expected
    assert fsspec_options("s3", {"region": "r", "client_kwargs": client}) == expected
    assert client == {"verify": False}


@pytest.mark.parametrize(
    ("protocol", "options", "said"),
    [
        ("s3", {"key": "a", "access_key_id": "b"}, "'key' is given twice"),
        ("s3", {"region": "a", "client_kwargs": {"region_name": "b"}}, "given twice"),
        ("s3", {"region": "a", "aws_region": "b"}, "given twice"),
        ("az", {"access_key": "a", "account_key": "b"}, "given twice"),
        ("s3", {"skip_signature": "perhaps"}, "'skip_signature': expected true or false"),
        ("s3", {"timeout": "soon"}, "expected a time"),
    ],
)
def test_contradictions_are_refused(protocol: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        fsspec_options(protocol, options)


def test_malformed_secrets_are_not_quoted() -> None:
    with pytest.raises(OptionError) as caught:
        fsspec_options("gs", {"service_account_key": '{"private_key": "hunter2'})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [("aws_regoin", "region"), ("acess_key_id", "access_key_id"), ("endpoint_ur", "endpoint_url")],
)
def test_misspelt_names_pass_with_a_hint(name: str, meant: str, caplog: pytest.LogCaptureFixture) -> None:
    assert fsspec_options("s3", {name: "hunter2"}) == {name: "hunter2"}
    assert f"{name!r} is unknown; did you mean {meant!r}?" in caplog.text
    assert "hunter2" not in caplog.text


def test_names_that_resemble_nothing_pass_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    assert fsspec_options("s3", {"asynchronous": False, "skip_instance_cache": True})
    assert not caplog.records


def test_our_own_options_do_not_reach_the_driver() -> None:
    own, rest = split_own(
        {
            "manifest_store": "sqlite:///x",
            "dynamodb_endpoint": "http://d",
            "aws_conditional_put": "disabled",
            "client_max_retries": "3",
            "client_retry_timeout": 9,
            "hedge_after": "500ms",
            "region": "r",
        }
    )
    assert rest == {"region": "r"}
    default = RetryPolicy.of_requests()
    retry = RetryPolicy(4, default.base_seconds, default.cap_seconds, 9, 0.5)
    assert own == OwnOptions("sqlite:///x", "http://d", False, retry)
    assert split_own({"a": 1}) == (OwnOptions(), {"a": 1})


@pytest.mark.parametrize("wrong", [{"conditional_put": "maybe"}, {"client_max_retries": -1}])
def test_wrong_values_of_our_own_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        split_own(wrong)
