"""The generated messages against files written by pylance: nothing unknown, nothing lost.

Every manifest, transaction, index section, file schema, column metadata block and page encoding of
a few tables is parsed. A field we do not declare, or declare with the wrong presence, shows up as an
unknown field or as a changed length when the message is serialized again.
"""

from __future__ import annotations

import ast
import os
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import lance
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from lance import DatasetBasePath
from lance.file import LanceFileWriter

from spark_lance.proto import (
    encodings20_pb2,
    encodings21_pb2,
    encodings23_pb2,
    file2_pb2,
    file_pb2,
    index_pb2,
    rowids_pb2,
    table_pb2,
    transaction_pb2,
)

MODULES = (
    encodings20_pb2,
    encodings21_pb2,
    encodings23_pb2,
    file2_pb2,
    file_pb2,
    index_pb2,
    rowids_pb2,
    table_pb2,
    transaction_pb2,
)
VERSIONS = ("2.0", "2.1", "2.2")
PAGE_TYPES: dict[str, type[Message]] = {
    "/lance.encodings.ArrayEncoding": encodings20_pb2.ArrayEncoding,
    "/lance.encodings21.PageLayout": encodings21_pb2.PageLayout,
}
INDEX_DETAILS: dict[str, type[Message] | None] = {
    "/lance.table.BTreeIndexDetails": None,
    "/lance.table.BitmapIndexDetails": None,
    "/lance.table.ZoneMapIndexDetails": index_pb2.ZoneMapIndexDetails,
    "/lance.index.pb.VectorIndexDetails": index_pb2.VectorIndexDetails,
    "/lance.table.FragmentReuseIndexDetails": table_pb2.FragmentReuseIndexDetails,
}


M = TypeVar("M", bound=Message)


def unknown_fields(message: Message, place: str = "") -> list[str]:
    """Return the dotted places of all undeclared fields in ``message`` and everything below it."""
    place = place or message.DESCRIPTOR.name
    strays = UnknownFieldSet(message)
    results = [f"{place}.{strays[number].field_number}" for number in range(len(strays))]
    for descriptor, value in message.ListFields():
        inside = f"{place}.{descriptor.name}"
        if descriptor.message_type is None:
            continue
        if descriptor.message_type.GetOptions().map_entry:
            if descriptor.message_type.fields_by_name["value"].message_type is not None:
                for key, entry in value.items():
                    results += unknown_fields(entry, f"{inside}[{key}]")
        elif isinstance(value, Message):
            results += unknown_fields(value, inside)
        else:
            for number, entry in enumerate(value):
                results += unknown_fields(entry, f"{inside}[{number}]")
    return results


def has_default_map_entry(message: Message) -> bool:
    """Return whether a map in ``message`` or below has a zero or empty key or value.

    Such halves of an entry may be left out on the wire; pylance does, Python's runtime does not.
    """
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        if descriptor.message_type.GetOptions().map_entry:
            if any(not key or not entry for key, entry in value.items()):
                return True
        elif any(
            has_default_map_entry(entry) for entry in ([value] if isinstance(value, Message) else value)
        ):
            return True
    return False


def parse(kind: type[M], raw: bytes) -> M:
    """Parse ``raw`` and check that every byte is understood and comes back."""
    message = kind()
    message.ParseFromString(raw)
    assert unknown_fields(message) == []
    again = message.SerializeToString(deterministic=True)
    if not has_default_map_entry(message):
        # Map entries may change their order, so the bytes are also compared as a multiset.
        assert again == raw or Counter(again) == Counter(raw), f"{message.DESCRIPTOR.name} changed"
    assert kind.FromString(again) == message
    return message


def framed(data: bytes, position: int) -> bytes:
    (length,) = struct.unpack_from("<I", data, position)
    return data[position + 4 : position + 4 + length]


def manifests(root: Path) -> Iterator[tuple[table_pb2.Manifest, bytes]]:
    """Yield (manifest, file bytes) of every version, oldest first."""
    paths = (root / "_versions").glob("*.manifest")
    for path in sorted(paths, reverse=True):
        data = path.read_bytes()
        (position,) = struct.unpack_from("<q", data, len(data) - 16)
        assert data[-4:] == b"LANC"
        raw = framed(data, position)
        assert position + 4 + len(raw) + 16 == len(data)
        yield parse(table_pb2.Manifest, raw), data


def data_file_messages(path: Path) -> Iterator[Any]:
    """Yield the schema, column metadata, and all encodings of one data file."""
    data = path.read_bytes()
    _, cmo, gbo, _, columns, _, _, magic = struct.unpack_from("<QQQIIHH4s", data, len(data) - 40)
    assert magic == b"LANC"
    position, size = struct.unpack_from("<QQ", data, gbo)
    yield parse(file_pb2.FileDescriptor, data[position : position + size])
    for column in range(columns):
        position, size = struct.unpack_from("<QQ", data, cmo + 16 * column)
        metadata = parse(file2_pb2.ColumnMetadata, data[position : position + size])
        yield metadata
        holder = parse(AnyMessage, metadata.encoding.direct.encoding)
        assert holder.type_url == "/lance.encodings.ColumnEncoding"
        yield parse(encodings20_pb2.ColumnEncoding, holder.value)
        for page in metadata.pages:
            holder = parse(AnyMessage, page.encoding.direct.encoding)
            yield parse(PAGE_TYPES[holder.type_url], holder.value)


def arms(message: Message) -> Iterator[str]:
    """Yield ``Message.arm`` of every oneof that is set in ``message`` or below."""
    for oneof in message.DESCRIPTOR.oneofs:
        arm = message.WhichOneof(oneof.name)
        if arm is not None:
            yield f"{message.DESCRIPTOR.name}.{arm}"
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        for entry in [value] if isinstance(value, Message) else value:
            yield from arms(entry)


def rows(start: int, count: int) -> pa.Table:
    ids = np.arange(start, start + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": pa.array([None if i % 7 == 0 else f"row {i}" for i in ids], pa.string()),
            "tags": pa.array([[int(i)] * (i % 3) for i in ids], pa.list_(pa.int32())),
            "vec": pa.FixedSizeListArray.from_arrays(pa.array(np.ones(count * 4, np.float32)), 4),
        }
    )


@pytest.fixture(scope="module", params=[(v, s) for v in VERSIONS for s in (False, True)], ids=str)
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with one version per kind of operation, with and without stable row ids."""
    version, stable = request.param
    root = tmp_path_factory.mktemp("history") / "table"
    dataset: Any = lance.write_dataset(
        rows(0, 300), root, data_storage_version=version, enable_stable_row_ids=stable
    )
    dataset = lance.write_dataset(rows(300, 300), root, mode="append")
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("text", "BITMAP")
    dataset.delete("id % 10 = 3")
    dataset.update({"text": "'changed'"}, where="id < 5")
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(590, 20))
    dataset.update_config({"owner": "tests"})
    dataset.update_config({"owner": None})
    dataset.update_metadata({"purpose": "round trip"})
    dataset.update_schema_metadata({"note": "kept"})
    dataset.update_field_metadata({"id": {"unit": "none"}})
    dataset.add_columns({"twice": "id * 2"})
    dataset.alter_columns({"path": "twice", "name": "double"})
    dataset.drop_columns(["double"])
    dataset.optimize.compact_files(target_rows_per_fragment=100_000)
    dataset.restore()
    dataset = lance.dataset(root, version=4)
    dataset.restore()
    dataset = lance.write_dataset(rows(0, 50), root, mode="overwrite")
    dataset.tags.create("first", dataset.version)
    dataset.create_branch("side")
    dataset.shallow_clone(str(root.parent / "clone"), dataset.version)
    return root


def wide_table(count: int, nested_nulls: bool) -> pa.Table:
    generator = np.random.default_rng(7)
    ids = np.arange(count)
    text = pa.array([f"some longer text number {i} {i * 7919}" for i in ids])
    struct_mask = pa.array(ids % 11 == 0) if nested_nulls else None
    structs = pa.StructArray.from_arrays([pa.array(ids), text], ["a", "b"], mask=struct_mask)
    packed = pa.StructArray.from_arrays([pa.array(ids, pa.int32()), pa.array(ids, pa.int64())], ["x", "y"])
    arrays: dict[str, pa.Array] = {
        "flat": pa.array(generator.random(count)),
        "bits": pa.array(ids % 100, pa.int32()),
        "gaps": pa.array([None if i % 9 == 0 else int(i) for i in ids], pa.int64()),
        "runs": pa.array(ids // 500, pa.int32()),
        "same": pa.array(np.full(count, 5)),
        "none": pa.nulls(count, pa.int32()),
        "flag": pa.array(ids % 2 == 0),
        "text": text,
        "few": pa.array([f"value {i % 10}" for i in ids]),
        "long": pa.array(["x" * 300 + str(i) for i in ids]),
        "huge": pa.array([b"y" * 40_000 if i % 1000 == 0 else b"" for i in ids], pa.large_binary()),
        "fsl": pa.FixedSizeListArray.from_arrays(pa.array(generator.random(count * 3)), 3),
        "embedding": pa.FixedSizeListArray.from_arrays(
            pa.array(generator.random(count * 64, np.float32)), 64
        ),
        "lists": pa.array([None if i % 5 == 0 else [int(i)] * (i % 4) for i in ids], pa.list_(pa.int64())),
        "structs": structs,
        "packed": packed,
        "zstd": pa.array(generator.integers(0, 1 << 40, count)),
        "split": pa.array(np.linspace(0, 1, count)),
        "fsst": text,
    }
    metadata: dict[str, dict[str, str]] = {
        "packed": {"lance-encoding:packed": "true"},
        "zstd": {"lance-encoding:compression": "zstd", "lance-encoding:compression-level": "3"},
        "split": {"lance-encoding:compression": "lz4", "lance-encoding:bss": "on"},
        "fsst": {"lance-encoding:compression": "fsst"},
    }
    fields = [pa.field(name, array.type, metadata=metadata.get(name)) for name, array in arrays.items()]
    return pa.table(list(arrays.values()), schema=pa.schema(fields, metadata={"made": "here"}))


@pytest.mark.parametrize("stray", [b"\xf8\x07\x01", b"\x6a\x03\xf8\x07\x01"], ids=["top", "nested"])
def test_checker_reports_an_undeclared_field(stray: bytes) -> None:
    """Field 127 at the top, and inside the writer version."""
    with pytest.raises(AssertionError, match=r"\.127"):
        parse(table_pb2.Manifest, stray)


def test_every_manifest_transaction_and_index_section(history: Path) -> None:
    operations, details = set(), set()
    for root in (history, history / "tree" / "side", history.parent / "clone"):
        for manifest, data in manifests(root):
            inline = framed(data, manifest.transaction_section)
            assert manifest.HasField("transaction_section")
            assert inline == (root / "_transactions" / manifest.transaction_file).read_bytes()
            transaction = parse(transaction_pb2.Transaction, inline)
            operations.add(transaction.WhichOneof("operation"))
            if manifest.HasField("index_section"):
                section = parse(table_pb2.IndexSection, framed(data, manifest.index_section))
                for index in section.indices:
                    assert len(index.uuid.uuid) == 16
                    details.add(index.index_details.type_url)
                    kind = INDEX_DETAILS[index.index_details.type_url]
                    if kind is None:
                        assert index.index_details.value == b""
                    else:
                        parse(kind, index.index_details.value)
    assert operations >= {
        "append",
        "clone",
        "create_index",
        "delete",
        "merge",
        "overwrite",
        "project",
        "reserve_fragments",
        "restore",
        "rewrite",
        "update",
        "update_config",
    }
    assert details == {"/lance.table.BTreeIndexDetails", "/lance.table.BitmapIndexDetails"}


def test_row_id_sequences(history: Path) -> None:
    stable = 0
    for manifest, _ in manifests(history):
        for fragment in manifest.fragments:
            if not manifest.reader_feature_flags & 2:
                assert not fragment.WhichOneof("row_id_sequence")
                continue
            stable += 1
            parse(rowids_pb2.RowIdSequence, fragment.inline_row_ids)
            for raw in (fragment.inline_last_updated_at_versions, fragment.inline_created_at_versions):
                sequence = parse(rowids_pb2.RowDatasetVersionSequence, raw)
                assert sequence.runs
    first, _ = next(manifests(history))
    assert bool(stable) == bool(first.reader_feature_flags & 2)


def test_data_files_of_the_history(history: Path) -> None:
    paths = list((history / "data").glob("*.lance"))
    assert len(paths) >= 4
    for path in paths:
        descriptor, *rest = data_file_messages(path)
        assert descriptor.schema.fields[0].parent_id == -1
        assert rest


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            "2.0",
            "ArrayEncoding.flat ArrayEncoding.nullable ArrayEncoding.fixed_size_list ArrayEncoding.list "
            "ArrayEncoding.struct ArrayEncoding.binary ArrayEncoding.dictionary ArrayEncoding.fsst "
            "ArrayEncoding.packed_struct Nullable.no_nulls Nullable.some_nulls Nullable.all_nulls",
        ),
        (
            "2.1",
            "PageLayout.mini_block_layout PageLayout.full_zip_layout PageLayout.constant_layout "
            "CompressiveEncoding.flat CompressiveEncoding.variable CompressiveEncoding.inline_bitpacking "
            "CompressiveEncoding.out_of_line_bitpacking CompressiveEncoding.fsst CompressiveEncoding.rle "
            "CompressiveEncoding.byte_stream_split CompressiveEncoding.general "
            "CompressiveEncoding.fixed_size_list CompressiveEncoding.packed_struct "
            "FullZipLayout.bits_per_value FullZipLayout.bits_per_offset",
        ),
        (
            "2.2",
            "PageLayout.mini_block_layout PageLayout.full_zip_layout PageLayout.constant_layout "
            "CompressiveEncoding.general CompressiveEncoding.rle CompressiveEncoding.variable_packed_struct",
        ),
    ],
)
def test_page_encodings_of_one_file(version: str, expected: str, tmp_path: Path) -> None:
    table = wide_table(3000, nested_nulls=version != "2.0")
    if version == "2.2":
        texts = pa.StructArray.from_arrays([table["few"].chunk(0), table["bits"].chunk(0)], ["t", "n"])
        field = pa.field("packed_text", texts.type, metadata={"lance-encoding:packed": "true"})
        table = table.append_column(field, texts)
    path = tmp_path / "wide.lance"
    with LanceFileWriter(str(path), table.schema, version=version) as writer:
        writer.write_batch(table)
    descriptor, *messages = data_file_messages(path)
    assert descriptor.length == table.num_rows
    assert dict(descriptor.schema.metadata)["made"] == b"here"
    seen = {arm for message in messages for arm in arms(message)}
    assert set(expected.split()) <= seen


@pytest.mark.parametrize(
    ("version", "arm"), [("2.0", "ColumnEncoding.blob"), ("2.1", "PageLayout.blob_layout")]
)
def test_blob_columns(version: Literal["2.0", "2.1"], arm: str, tmp_path: Path) -> None:
    field = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    table = pa.table([pa.array([b"one", None, b""] * 10, pa.large_binary())], schema=pa.schema([field]))
    lance.write_dataset(table, tmp_path / "t", data_storage_version=version)
    (path,) = (tmp_path / "t" / "data").glob("*.lance")
    assert arm in {name for message in data_file_messages(path) for name in arms(message)}


def test_vector_index_and_fragment_reuse_details(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(generator.random(400 * 8, np.float32)), 8)
    table = pa.table({"id": pa.array(range(400)), "vec": vectors})
    root = tmp_path / "t"
    dataset = lance.write_dataset(table, root, max_rows_per_file=100)
    dataset.create_index("vec", "IVF_PQ", num_partitions=2, num_sub_vectors=2, metric="cosine")
    dataset.create_scalar_index("id", "ZONEMAP")
    dataset.optimize.compact_files(defer_index_remap=True)
    seen: dict[type[Message], Any] = {}
    for manifest, data in manifests(root):
        if manifest.HasField("index_section"):
            section = parse(table_pb2.IndexSection, framed(data, manifest.index_section))
            for index in section.indices:
                kind = INDEX_DETAILS[index.index_details.type_url]
                assert kind is not None
                seen[kind] = parse(kind, index.index_details.value)
    vector = seen[index_pb2.VectorIndexDetails]
    assert vector.metric_type == index_pb2.METRIC_COSINE
    assert vector.pq.num_sub_vectors == 2
    reuse = seen[table_pb2.FragmentReuseIndexDetails]
    assert len(reuse.inline.versions[0].groups[0].old_fragments) == 4
    assert index_pb2.ZoneMapIndexDetails in seen
    auxiliary = next((root / "_indices").glob("*/auxiliary.idx")).read_bytes()
    gbo, count = struct.unpack_from("<QI", auxiliary, len(auxiliary) - 24)
    assert count >= 2
    position, size = struct.unpack_from("<QQ", auxiliary, gbo + 16)
    ivf = parse(index_pb2.IVF, auxiliary[position : position + size])
    assert sum(ivf.lengths) == 400


def test_bases_replacement_properties_and_spilled_lineage(tmp_path: Path) -> None:
    """Operations and fragment forms that the ordinary history does not reach."""
    root = tmp_path / "t"
    table = pa.table({"id": pa.array(range(300))})
    dataset: Any = lance.write_dataset(table, root, max_rows_per_file=100, enable_stable_row_ids=True)
    settings = {"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "1"}
    dataset.update_config(settings)
    dataset.delete("id % 3 = 1")
    dataset.optimize.compact_files()
    dataset.add_bases([DatasetBasePath(str(tmp_path / "other"), name="other")])
    replacement = tmp_path / "t" / "data" / "replacement.lance"
    values = pa.table({"id": pa.array(range(1000, 1200))})
    with LanceFileWriter(str(replacement), values.schema, version="2.2") as writer:
        writer.write_batch(values)
    (fragment,) = dataset.get_fragments()
    assert fragment.physical_rows == 200
    file = lance.fragment.DataFile(replacement.name, [0], [0], 2, 2, replacement.stat().st_size)
    group = lance.LanceOperation.DataReplacementGroup(fragment.fragment_id, file)
    operation = lance.LanceOperation.DataReplacement([group])
    lance.LanceDataset.commit(
        root, operation, read_version=lance.dataset(root).version, commit_message="swap the column"
    )
    parsed = []
    operations = []
    for manifest, data in manifests(root):
        transaction = parse(transaction_pb2.Transaction, framed(data, manifest.transaction_section))
        operations.append(transaction.WhichOneof("operation"))
        parsed.append((manifest, transaction))
    assert {"update_bases", "data_replacement"} <= set(operations)
    assert [base.name for base in parsed[-1][0].base_paths] == ["other"]
    assert dict(parsed[-1][1].transaction_properties)["__lance_commit_message"] == "swap the column"
    rewritten = next(m for m, t in parsed if t.WhichOneof("operation") == "rewrite")
    assert rewritten.reader_feature_flags & 2048
    assert rewritten.fragments[0].WhichOneof("row_id_sequence") == "column_row_ids"
    assert -3 in rewritten.fragments[0].files[0].fields


def test_legacy_file_metadata(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array(range(2000)), "text": pa.array([str(i) for i in range(2000)])})
    lance.write_dataset(table, tmp_path / "t", data_storage_version="legacy")
    (path,) = (tmp_path / "t" / "data").glob("*.lance")
    data = path.read_bytes()
    (position,) = struct.unpack_from("<q", data, len(data) - 16)
    metadata = parse(file_pb2.Metadata, framed(data, position))
    assert metadata.batch_offsets[0] == 0
    assert metadata.batch_offsets[-1] == 2000
    manifest = parse(table_pb2.Manifest, framed(data, metadata.manifest_position))
    assert [field.name for field in manifest.fields] == ["id", "text"]


def test_sets_that_registries_must_cover() -> None:
    """The numbers of arms are those of the format; a registry has one row per arm."""
    array = encodings20_pb2.ArrayEncoding.DESCRIPTOR.oneofs_by_name["array_encoding"]
    page = encodings21_pb2.PageLayout.DESCRIPTOR.oneofs_by_name["layout"]
    compression = encodings21_pb2.CompressiveEncoding.DESCRIPTOR.oneofs_by_name["compression"]
    operation = transaction_pb2.Transaction.DESCRIPTOR.oneofs_by_name["operation"]
    assert [field.number for field in array.fields] == list(range(1, 22))
    assert [field.number for field in page.fields] == list(range(1, 6))
    assert [field.number for field in compression.fields] == list(range(1, 16))
    assert [field.number for field in operation.fields] == list(range(100, 116))


def test_names_stay_out_of_the_lance_packages() -> None:
    """A process may load another set of Lance messages; full names must not collide."""

    def names(descriptor: Descriptor) -> Iterator[str]:
        yield descriptor.full_name
        for nested in descriptor.nested_types:
            yield from names(nested)

    for module in MODULES:
        assert module.DESCRIPTOR.name.startswith("spark_lance/proto/")
        for message in module.DESCRIPTOR.message_types_by_name.values():
            assert all(name.startswith("spark_lance.") for name in names(message))


def test_presence_of_zero_positions() -> None:
    """A section at file position 0 must differ from an absent one."""
    manifest = table_pb2.Manifest(transaction_section=0)
    assert manifest.SerializeToString() == b"\xb8\x01\x00"
    assert not table_pb2.Manifest.FromString(b"").HasField("transaction_section")
    assert table_pb2.IndexMetadata(fragment_bitmap=b"").HasField("fragment_bitmap")


# Run in a process of its own, as protobuf chooses its implementation once.
WITHOUT_C = """
import pickle, sys
from google.protobuf.internal import api_implementation
from spark_lance.proto import table_pb2, transaction_pb2
assert api_implementation.Type() == "python"
message = transaction_pb2.Transaction.FromString(sys.stdin.buffer.read())
again = pickle.loads(pickle.dumps(message))
assert again == message and type(again) is transaction_pb2.Transaction
assert isinstance(message.append.fragments[0], table_pb2.DataFragment)
sys.stdout.buffer.write(message.SerializeToString())
"""


def test_a_runtime_without_c_reads_the_same() -> None:
    fragment = table_pb2.DataFragment(files=[table_pb2.DataFile(path="x", fields=[0, 1])], physical_rows=3)
    message = transaction_pb2.Transaction(
        read_version=7, uuid="u", append=transaction_pb2.Transaction.Append(fragments=[fragment])
    )
    raw = message.SerializeToString()
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_C]
    done = subprocess.run(command, input=raw, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, raw), done.stderr.decode()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_stubs_and_messages_agree(module: ModuleType) -> None:
    """What type checkers are told a module has is what it has, and the other way round."""
    stub = ast.parse(Path(module.__file__ or "").with_suffix(".pyi").read_text())
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    messages = module.DESCRIPTOR.message_types_by_name
    assert set(classes) == {*messages, *module.DESCRIPTOR.enum_types_by_name}
    for name, message in messages.items():
        targets = [part.target for part in classes[name].body if isinstance(part, ast.AnnAssign)]
        results = {target.id for target in targets if isinstance(target, ast.Name)}
        assert {field.name for field in message.fields} == results - {
            target for target in results if target.isupper() or target.endswith("_FIELD_NUMBER")
        }
        assert getattr(module, name).__module__ == module.__name__


def test_generated_code_runs_on_old_releases_of_protobuf() -> None:
    """Generators of protobuf 5 and newer write a check that refuses every older runtime."""
    texts = [path.read_text() for path in Path(table_pb2.__file__).parent.glob("*.py")]
    assert len(texts) == len(MODULES) + 1
    assert not any("runtime_version" in text or "ValidateProtobufRuntimeVersion" in text for text in texts)
