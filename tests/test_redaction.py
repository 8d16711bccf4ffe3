"""Secrets in texts: they go, whatever is written around them, and the rest stays."""

from __future__ import annotations

import base64
import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.errors import FormatError, LanceError, OptionError, TableNotFoundError
from spark_lance.redaction import is_secret_name, redacted, shown_options

SECRET = "q8Zr2vXw7LmN4tYb"
LOGIN = base64.b64encode(b"me:pass").decode()


@pytest.mark.parametrize(
    "text",
    [
        f"password={SECRET}",
        f"Password = '{SECRET}'",
        f'{{"private_key": "{SECRET}", "x": 1}}',
        f"{{'secret': '{SECRET}'}}",
        f'{{"secret": {SECRET}',
        f'\\"private_key\\": \\"{SECRET}\\"',
        f"https://h/x?X-Goog-Credential={SECRET}%2Fx&X-Goog-Signature={SECRET}",
        f"https://a.blob.core.windows.net/c?sv=1&sig={SECRET}%3D&se=2",
        f"DefaultEndpointsProtocol=https;AccountName=me;AccountKey={SECRET}==;EndpointSuffix=x",
        f"SharedAccessSignature=sv=1&sig={SECRET}",
        f"Endpoint=sb://x;SharedAccessKey={SECRET}",
        f"https://me:{SECRET}@host/x",
        f"https://me:p@{SECRET}@host/x",
        f"redis://:{SECRET}@host:1",
        f"Authorization: Bearer {SECRET}",
        f"authorization='Basic {SECRET}'",
        f"bearer {SECRET}",
        f"aws_secret_access_key={SECRET}",
        f"storage.aws_session_token = {SECRET}",
        f"AWS4-HMAC-SHA256 Credential={SECRET}/x, SignedHeaders=host, Signature={SECRET}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\\n{SECRET}",
        f"eyJhbGciOiJI.{SECRET}.{SECRET}",
        f"ya29.{SECRET}",
    ],
)
def test_secrets_go_by_what_is_around_them(text: str) -> None:
    hidden = redacted(f"reading x: {text} (region eu-west-1)")
    assert SECRET not in hidden
    assert hidden.startswith("reading x: ")
    assert redacted(hidden) == hidden


def test_keys_of_aws_and_logins_go_by_their_form() -> None:
    assert redacted(f"AKIAIOSFODNN7EXAMPLE Basic {LOGIN}") == "*** Basic ***"


@pytest.mark.parametrize(
    "text",
    [
        "option 'token': expected true or false",
        "column 'token' is missing",
        "storage option 'secret': malformed value",
        "basic information of basic encoding",
        "abfss://container@account.dfs.core.windows.net/t",
        "s3://bucket/key/part=7/x.lance",
        "txnAppId=3",
        "version 3 of /data/t: 5 rows",
        "http://host:9000/a@b",
    ],
)
def test_the_rest_stays(text: str) -> None:
    assert redacted(text) == text


def test_values_of_options_go_in_every_spelling() -> None:
    options = {
        "secret": 'a"b\\c/d+e',
        "client_kwargs": {"region_name": "eu-west-1", "aws_session_token": "inside-secret"},
        "service_account_key": '{"private_key": "k-inside", "n": ["l-inside"]}',
        "key": "abc",
    }
    said = 'a"b\\c/d+e a\\"b\\\\c/d+e a%22b%5Cc%2Fd%2Be inside-secret k-inside eu-west-1 abc abcd'
    assert redacted(said, options) == "*** *** *** *** *** eu-west-1 *** abcd"


@given(st.text(min_size=6, alphabet=st.characters(exclude_characters="*", exclude_categories=["C", "Z"])))
def test_no_value_of_an_option_survives(secret: str) -> None:
    assert secret not in redacted(f"it said {secret}: no", {"storage.sas_token": secret})


@given(st.lists(st.sampled_from(["token", "=", ":", "'", '"', "\\", "//", "@", " ", "a", "{", ","])))
def test_twice_changes_nothing_more(parts: list[str]) -> None:
    once = redacted("".join(parts))
    assert redacted(once) == once


@pytest.mark.parametrize("part", ["a=", '"secret":"', "eyJ-", "token=", "//a:", "-----BEGIN ", '\\"', "//:@"])
def test_a_hostile_text_takes_no_long_time(part: str) -> None:
    """Names in errors come from files: the time grows with the length and no faster."""

    def seconds(count: int) -> float:
        start = time.process_time()
        redacted(part * count)
        return time.process_time() - start

    assert seconds(20_000) < 16 * max(seconds(5_000), 0.02)


@pytest.mark.parametrize(
    "name",
    [
        *("secret_access_key", "storage.key", "aws_session_token", "token", "account_key", "sas_token"),
        *("sas_key", "connection_string", "azure_storage_sas_key", "google_service_account_key", "password"),
        *("header.Authorization", "header.x-api-key", "client_secret", "credential", "storage.client_kwargs"),
        *("sse_customer_key_base64", "proxy_url", "fs.s3a.access.key", "aws_access_key_id", "bearer_token"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["region", "endpoint_url", "path", "columns", "keys", "anon", "root"])
def test_other_names(name: str) -> None:
    assert not is_secret_name(name)


def test_options_for_people() -> None:
    options = {
        "key": "a",
        "region": "b",
        "endpoint": "http://u:p@h",
        "client_kwargs": {"secret": "c", "d": 1},
    }
    hidden = {
        "key": "***",
        "region": "b",
        "endpoint": "http://***@h",
        "client_kwargs": {"secret": "***", "d": 1},
    }
    assert shown_options(options) == hidden


def test_errors_hide_secrets() -> None:
    assert str(OptionError(f"what: password={SECRET}")) == "what: password=***"
    error = FormatError("bad bytes", f"https://h/t?sig={SECRET}", "page 1")
    shown = "bad bytes (page 1 in https://h/t?sig=***) [troubleshooting T9]"
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == shown
    assert SECRET not in repr(error) + repr(error.at(place="x").args)
    assert SECRET not in repr(TableNotFoundError(f"https://me:{SECRET}@h/t: no table"))
    assert str(LanceError()) == ""
