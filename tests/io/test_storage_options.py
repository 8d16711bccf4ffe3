"""Names of storage options: Lance's for S3 are understood, everything else passes."""

from __future__ import annotations

import pytest

from spark_lance.errors import OptionError
from spark_lance.io.storage_options import fsspec_options


def test_lance_names_become_those_of_s3fs() -> None:
    given = {
        "aws_access_key_id": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "aws_region": "r",
        "aws_endpoint": "http://x",
    }
    assert fsspec_options("s3", {**given, "allow_http": True, "anon": False}) == {
        "key": "a",
        "secret": "b",
        "client_kwargs": {"region_name": "r"},
        "endpoint_url": "http://x",
        "anon": False,
    }


def test_nested_settings_are_joined_and_not_changed() -> None:
    client = {"verify": False}
    options = {"client_kwargs": client, "region": "r"}
    assert fsspec_options("s3", options) == {"client_kwargs": {"verify": False, "region_name": "r"}}
    assert client == {"verify": False}


def test_one_setting_by_two_names_is_refused() -> None:
    with pytest.raises(OptionError, match="'key' is given twice"):
        fsspec_options("s3", {"key": "a", "access_key_id": "b"})


def test_other_file_systems_get_their_own_names() -> None:
    assert fsspec_options("gs", {"region": "r"}) == {"region": "r"}
