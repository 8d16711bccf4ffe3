"""Operations for the conflict grid: each row of the grid in the shapes that its rules tell apart.

All are computed from one version: fragments 0, 1 and 2 with the columns a (field 0, indexed as `a_idx`),
b (1) and c (2).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from google.protobuf.message import Message
from pyroaring import BitMap

from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.manifest import Manifest

__all__ = ["CASES"]

pb = transaction_pb2.Transaction
Case = Callable[[Manifest], Message]


def _copy(base: Manifest, number: int) -> table_pb2.DataFragment:
    fragment = table_pb2.DataFragment()
    fragment.CopyFrom(base.fragments[number])
    return fragment


def _marked(base: Manifest, number: int) -> table_pb2.DataFragment:
    """A fragment that has lost a row."""
    fragment = _copy(base, number)
    fragment.deletion_file.CopyFrom(
        table_pb2.DeletionFile(read_version=base.version, id=7, num_deleted_rows=1)
    )
    return fragment


def _fresh(base: Manifest) -> table_pb2.DataFragment:
    """A fragment to add."""
    fragment = _copy(base, 0)
    fragment.id = 0
    fragment.files[0].path = f"{uuid.uuid4().hex}.lance"
    return fragment


def _column_file(base: Manifest, field: int) -> table_pb2.DataFile:
    file = table_pb2.DataFile()
    file.CopyFrom(base.fragments[0].files[0])
    file.path = f"{uuid.uuid4().hex}.lance"
    file.ClearField("fields")
    file.ClearField("column_indices")
    file.fields.append(field)
    file.column_indices.append(0)
    return file


def _recolumned(base: Manifest, number: int, field: int) -> table_pb2.DataFragment:
    """A fragment in which one column lies in a file of its own."""
    fragment = _copy(base, number)
    fragment.files[0].fields[field] = -2
    fragment.files.append(_column_file(base, field))
    return fragment


def delete(marked: Sequence[int] = (), gone: Sequence[int] = ()) -> Case:
    return lambda base: pb.Delete(
        updated_fragments=[_marked(base, number) for number in marked], deleted_fragment_ids=gone
    )


def update_rows(
    marked: Sequence[int] = (), gone: Sequence[int] = (), keys: pb.KeyExistenceFilter | None = None
) -> Case:
    return lambda base: pb.Update(
        updated_fragments=[_marked(base, number) for number in marked],
        removed_fragment_ids=gone,
        new_fragments=[_fresh(base)],
        fields_for_preserving_frag_bitmap=[0, 1, 2],
        inserted_rows=keys,
    )


def update_columns(field: int, *numbers: int) -> Case:
    return lambda base: pb.Update(
        updated_fragments=[_recolumned(base, number, field) for number in numbers],
        fields_modified=[field],
        update_mode=pb.Update.REWRITE_COLUMNS,
    )


def exact(*hashes: int, fields: Sequence[int] = (0,)) -> pb.KeyExistenceFilter:
    return pb.KeyExistenceFilter(field_ids=fields, exact=pb.KeyExistenceFilter.ExactKeySet(key_hashes=hashes))


def bloom(first: int, *, items: int = 8192) -> pb.KeyExistenceFilter:
    bits = pb.KeyExistenceFilter.BloomFilter(
        bitmap=bytes([first]) + bytes(31), num_bits=256, number_of_items=items, probability=0.01
    )
    return pb.KeyExistenceFilter(field_ids=[0], bloom=bits)


def index(
    name: str,
    field: int,
    covered: Sequence[int] | None,
    *,
    remove: bool = False,
    kind: str = "BTree",
) -> Case:
    def build(base: Manifest) -> Message:
        fields = [] if name.startswith("__lance") else [field]
        entry = table_pb2.IndexMetadata(
            name=name, fields=fields, dataset_version=base.version, index_version=0
        )
        entry.uuid.uuid = uuid.uuid4().bytes
        entry.index_details.type_url = f"/lance.table.{kind}IndexDetails"
        if kind == "FragmentReuse":
            entry.index_details.value = b"\x0a\x00"
        if covered is not None:
            entry.fragment_bitmap = BitMap(covered).serialize()
        removed = [old for old in base.indices if old.name == name] if remove else []
        return pb.CreateIndex(new_indices=[entry], removed_indices=removed)

    return build


def drop_index(base: Manifest) -> Message:
    return pb.CreateIndex(removed_indices=base.indices)


def rewrite(*numbers: int, index: bool = False) -> Case:
    def build(base: Manifest) -> Message:
        group = pb.Rewrite.RewriteGroup(
            old_fragments=[base.fragments[number] for number in numbers], new_fragments=[_fresh(base)]
        )
        operation = pb.Rewrite(groups=[group])
        if index:
            old = base.indices[0]
            moved = operation.rewritten_indices.add(
                old_id=old.uuid, new_index_details=old.index_details, new_index_version=old.index_version
            )
            moved.new_id.uuid = uuid.uuid4().bytes
        return operation

    return build


def merge(*, preserves: bool) -> Case:
    def build(base: Manifest) -> Message:
        operation = pb.Merge(schema=base.message.fields, preserves_nullability=preserves)
        operation.schema.add(name="d", id=3, parent_id=-1, logical_type="int64", nullable=True)
        for number in range(len(base.fragments)):
            fragment = _copy(base, number)
            fragment.files.append(_column_file(base, 3))
            operation.fragments.append(fragment)
        return operation

    return build


def project(*fields: int, preserves: bool = True) -> Case:
    def build(base: Manifest) -> Message:
        remaining = [field for field in base.message.fields if field.id in fields]
        operation = pb.Project(schema=remaining, preserves_nullability=preserves)
        if not preserves:
            operation.schema[-1].nullable = False
        return operation

    return build


def overwrite(**config: str) -> Case:
    return lambda base: pb.Overwrite(
        fragments=[_fresh(base)], schema=base.message.fields, config_upsert_values=config
    )


def texts(*, replace: bool = False, **values: str | None) -> pb.UpdateMap:
    entries = [pb.UpdateMapEntry(key=key, value=value) for key, value in values.items()]
    return pb.UpdateMap(update_entries=entries, replace=replace)


def replacement(field: int, *numbers: int) -> Case:
    def build(base: Manifest) -> Message:
        entries = [
            pb.DataReplacementGroup(fragment_id=number, new_file=_column_file(base, field))
            for number in numbers
        ]
        return pb.DataReplacement(replacements=entries)

    return build


def overlay(field: int, *numbers: int) -> Case:
    """New values for the first row of a column, beside the fragments' files."""

    def build(base: Manifest) -> Message:
        groups = []
        for number in numbers:
            file = table_pb2.DataOverlayFile(data_file=_column_file(base, field), committed_version=0)
            file.shared_offset_bitmap = BitMap([0]).serialize()
            groups.append(pb.DataOverlayGroup(fragment_id=number, overlays=[file]))
        return pb.DataOverlay(groups=groups)

    return build


def just(message: Message) -> Case:
    return lambda base: message


def base_path(path: str, name: str | None = None, number: int = 0) -> Case:
    return just(pb.UpdateBases(new_bases=[table_pb2.BasePath(id=number, name=name, path=path)]))


CASES: dict[str, Case] = {
    "append": lambda base: pb.Append(fragments=[_fresh(base)]),
    "overwrite": overwrite(),
    "overwrite, config k": overwrite(k="1"),
    "delete in 0": delete([0]),
    "delete in 1": delete([1]),
    "delete 0": delete([], [0]),
    "delete in 1 and 0": delete([1], [0]),
    "update in 0": update_rows([0]),
    "update in 1": update_rows([1]),
    "update 0": update_rows([], [0]),
    "insert keys 1 2": update_rows([2], keys=exact(1, 2)),
    "insert keys 2 3": update_rows([1], keys=exact(2, 3)),
    "insert keys 4": update_rows([0], keys=exact(4)),
    "insert keys of b": update_rows([0], keys=exact(4, fields=(1,))),
    "insert bloom 1": update_rows([1], keys=bloom(1)),
    "insert bloom 3": update_rows([0], keys=bloom(3)),
    "insert bloom 4": update_rows([0], keys=bloom(4)),
    "insert bloom 4 of others": update_rows([0], keys=bloom(4, items=5)),
    "update column a of 0": update_columns(0, 0),
    "update column b of 0": update_columns(1, 0),
    "update column b of 1 2": update_columns(1, 1, 2),
    "index a again": index("a_idx", 0, [0, 1, 2], remove=True),
    "index a, part": index("a_idx", 0, [2]),
    "index b": index("b_idx", 1, [0, 1, 2]),
    "index b of 1": index("b_idx", 1, [1]),
    "index c of 0": index("c_idx", 2, [0]),
    "index c of unknown": index("c_idx", 2, None),
    "index of reuse": index("__lance_frag_reuse", 2, [2], kind="FragmentReuse"),
    "index of log": index("__lance_mem_wal", 2, None, kind="MemWal"),
    "drop index": drop_index,
    "rewrite 0": rewrite(0),
    "rewrite 1 2": rewrite(1, 2),
    "rewrite all with index": rewrite(0, 1, 2, index=True),
    "merge": merge(preserves=True),
    "merge, tighter": merge(preserves=False),
    "drop c": project(0, 1),
    "drop b": project(0, 2),
    "tighten": project(0, 1, 2, preserves=False),
    "restore": just(pb.Restore(version=1)),
    "reserve": just(pb.ReserveFragments(num_fragments=3)),
    "set k": just(pb.UpdateConfig(config_updates=texts(k="1"))),
    "set m": just(pb.UpdateConfig(config_updates=texts(m="1"))),
    "delete k": just(pb.UpdateConfig(config_updates=texts(k=None))),
    "config is m": just(pb.UpdateConfig(config_updates=texts(replace=True, m="1"))),
    "set metadata k": just(pb.UpdateConfig(table_metadata_updates=texts(k="1"))),
    "set schema k": just(pb.UpdateConfig(schema_metadata_updates=texts(k="1"))),
    "set schema m": just(pb.UpdateConfig(schema_metadata_updates=texts(m="1"))),
    "set a k": just(pb.UpdateConfig(field_metadata_updates={0: texts(k="1")})),
    "set a m": just(pb.UpdateConfig(field_metadata_updates={0: texts(m="1")})),
    "set b k": just(pb.UpdateConfig(field_metadata_updates={1: texts(k="1")})),
    "replace a of 0": replacement(0, 0),
    "replace b of 0": replacement(1, 0),
    "replace b of 1 2": replacement(1, 1, 2),
    "replace c of 0": replacement(2, 0),
    "overlay b of 0": overlay(1, 0),
    "overlay c of 1 2": overlay(2, 1, 2),
    "base x": base_path("/x", "x"),
    "base y": base_path("/y", "y"),
    "base y as x": base_path("/y", "x"),
    "base x as z": base_path("/x", "z"),
    "base z unnamed": base_path("/z"),
    "base v unnamed": base_path("/v"),
    "base 9": base_path("/9", "nine", 9),
    "base 9 again": base_path("/99", "ninety nine", 9),
    "log": just(pb.UpdateMemWalState()),
    "clone": just(pb.Clone(is_shallow=True, ref_version=1, ref_path="/x")),
    "unknown": just(pb.Append()),
}
