"""Names inside a table."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.proto import table_pb2
from spark_lance.table.format.paths import (
    ManifestNaming,
    deletion_path,
    manifest_path,
    new_data_file_name,
    parse_manifest_name,
    transaction_name,
)


def test_manifest_names() -> None:
    assert ManifestNaming.V1.file_name(7) == "7.manifest"
    assert ManifestNaming.V2.file_name(1) == "18446744073709551614.manifest"
    assert ManifestNaming.V2.file_name(2**64 - 1) == "00000000000000000000.manifest"
    assert manifest_path("/t", 1, ManifestNaming.V1) == "/t/_versions/1.manifest"


@given(st.integers(1, 2**63 - 1), st.sampled_from(ManifestNaming))
def test_manifest_names_are_read_back(version: int, naming: ManifestNaming) -> None:
    assert parse_manifest_name(naming.file_name(version)) == (version, naming)


def test_newer_versions_sort_first_by_v2_names() -> None:
    names = [ManifestNaming.V2.file_name(version) for version in (1, 9, 10, 99, 100, 2**40)]
    assert names == sorted(names, reverse=True)


@pytest.mark.parametrize(
    "name",
    [
        "d9223372036854775808.manifest",
        "18446744073709551614.manifest#1",
        "18446744073709551614.manifest-0b3f8d3c-3f5c-4c0e-9a52-0a52d1e1a111",
        "7.manifest-0b3f8d3c-3f5c-4c0e-9a52-0a52d1e1a111",
        ".tmpAbC123",
        ".tmp0.manifest",
        "latest_version_hint.json",
        "99999999999999999999.manifest",
        "7.manifest.bak",
        "-7.manifest",
        "+7.manifest",
        " 7.manifest",
        "٣.manifest",
        ".manifest",
        "manifest",
        "",
    ],
)
def test_other_names_are_no_versions(name: str) -> None:
    assert parse_manifest_name(name) is None


def test_deletion_paths() -> None:
    deletion = table_pb2.DeletionFile(read_version=4, id=2**64 - 1)
    assert deletion_path("/t", 3, deletion) == f"/t/_deletions/3-4-{2**64 - 1}.arrow"
    deletion.file_type = table_pb2.DeletionFile.BITMAP
    assert deletion_path("/t", 3, deletion).endswith(".bin")


def test_transaction_names() -> None:
    assert transaction_name(0, "aa-bb") == "0-aa-bb.txn"


def test_data_file_names_are_unique_and_well_formed() -> None:
    names = {new_data_file_name() for _ in range(1000)}
    assert len(names) == 1000
    assert all(re.fullmatch(r"[01]{24}[0-9a-f]{26}\.lance", name) for name in names)
