"""Every pair of operations, ours and theirs, ends as in pylance: the same verdict and the same version.

Theirs is one and the same manifest file for both sides. Ours is one message: we commit it, and pylance
commits what it decodes from a manifest that holds it. Operations that pylance cannot take from Python are
judged as theirs only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from google.protobuf.message import Message
from pyroaring import BitMap

from spark_lance.errors import IncompatibleConflictError, LanceError, RetryableConflictError
from spark_lance.io.local import LocalStore
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.manifest import Manifest, pack_manifest
from spark_lance.table.format.paths import ManifestNaming, manifest_path
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import Transaction
from spark_lance.table.operations import OPERATIONS
from spark_lance.table.operations.next_version import CommitContext
from spark_lance.table.versions.versions import load_latest, load_version
from tests.table.commits.grid_cases import CASES

STORE = LocalStore()
READ, NEXT = 2, 3
SAMPLE = 23
# Pairs that pylance judges otherwise, with the reason why we do.
APART = {
    # A write-ahead log is not executed here, so neither is merged with one.
    ("index of log", "log"),
    # Pylance merges two fragment-reuse entries, of which it knows more than the transactions tell.
    ("index of reuse", "rewrite 0"),
    ("index of reuse", "rewrite 1 2"),
    ("index of reuse", "rewrite all with index"),
    # Ours runs again whatever columns they laid values over: it then finds a table that it does not write to.
    ("update column a of 0", "overlay b of 0"),
    ("update column b of 1 2", "overlay c of 1 2"),
}


@dataclass
class World:
    """One table, and what each case is on it.

    Attributes:
        path: the table at version 2.
        messages: our operations.
        manifests: the manifest file of version 3 by which each operation came first.
        decoded: pylance's view of the operations that survive the way through it.
    """

    path: Path
    messages: dict[str, Message] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    decoded: dict[str, Any] = field(default_factory=dict)

    def copy(self, name: str, theirs: str | None = None) -> Path:
        """Return a copy of the table, with a third version by `theirs`."""
        target = self.path.with_name(name)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.path, target, copy_function=os.link)
        if theirs is not None:
            Path(manifest_path(str(target), NEXT, ManifestNaming.V2)).write_bytes(self.manifests[theirs])
        return target


def _as_theirs(base: Manifest, first: Manifest, message: Message, *, known: bool) -> bytes:
    """Return the manifest file of a version made by another writer."""
    transaction = Transaction.new(message, READ) if known else Transaction.parse(b"\x08\x02")
    build = OPERATIONS[transaction.name] if transaction.name else None
    following = table_pb2.Manifest()
    following.CopyFrom(base.message)
    following.version = NEXT
    section = base.index_section
    if build is not None and not isinstance(message, transaction_pb2.Transaction.Clone):
        result = build(base, message, CommitContext("", "", 0, first))
        following, section = result.message, result.index_section
    following.transaction_file = ""
    return pack_manifest(following, section, transaction.pack())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    path = tmp_path_factory.mktemp("grid") / "table"
    rows = pa.table({"a": range(6), "b": [float(i) for i in range(6)], "c": list("abcdef")})
    lance.write_dataset(rows, path, max_rows_per_file=2).create_scalar_index("a", "BTREE")
    base, first = load_latest(TableRef(STORE, str(path))), load_version(TableRef(STORE, str(path)), 1)
    result = World(path)
    for name, case in CASES.items():
        message = case(base)
        result.messages[name] = message
        result.manifests[name] = _as_theirs(base, first, message, known=name != "unknown")
        if (view := _through_pylance(result, name)) is not None:
            result.decoded[name] = view
    return result


def _through_pylance(world: World, name: str) -> Any:
    """Return pylance's object for an operation; None if it has none, or one that lacks something."""
    shown = world.copy("shown", name)
    bare = world.copy("bare")
    try:
        view: Any = lance.dataset(str(shown)).read_transaction(NEXT)
        lance.LanceDataset.commit(str(bare), view, read_version=READ)
    except (ValueError, TypeError, OSError):
        return None
    (written,) = {*bare.glob("_transactions/*")} - {*bare.glob("_transactions/0-*")} - _names(world, bare)
    operation = Transaction.parse(written.read_bytes()).operation
    return view if _exact(operation) == _exact(world.messages[name]) else None


def _names(world: World, copy: Path) -> set[Path]:
    return {copy / "_transactions" / path.name for path in world.path.glob("_transactions/*")}


def _exact(message: Message) -> tuple[str, bytes]:
    return message.DESCRIPTOR.name, message.SerializeToString(deterministic=True)


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except RetryableConflictError:
        return "retry"
    except IncompatibleConflictError:
        return "incompatible"
    except LanceError:
        return "error"
    except OSError as error:
        text = str(error)
        if "Retryable commit conflict" in text:
            return "retry"
        return "incompatible" if "Incompatible transaction" in text else "error"
    return "fine"


def _version(path: Path) -> dict[str, object]:
    """What a version consists of, apart from who made it and when."""
    manifest = load_latest(TableRef(STORE, str(path)))
    message = manifest.message
    indices = [
        (entry.name, entry.uuid.uuid, list(entry.fields), entry.dataset_version, _covered(entry))
        for entry in manifest.indices
    ]
    return {
        "version": manifest.version,
        "fragments": list(message.fragments),
        "fields": list(message.fields),
        "indices": sorted(indices),
        "counters": (manifest.max_fragment_id, manifest.next_row_id),
        "settings": (dict(message.config), dict(message.table_metadata)),
        "flags": (message.reader_feature_flags, message.writer_feature_flags),
        "bases": list(message.base_paths),
    }


def _covered(entry: table_pb2.IndexMetadata) -> list[int] | None:
    return list(BitMap.deserialize(entry.fragment_bitmap)) if entry.fragment_bitmap else None


def _differences(world: World, ours: str, theirs: str) -> Iterator[str]:
    if (ours, theirs) in APART:
        return
    message, view = world.messages[ours], world.decoded[ours]
    paths = [world.copy(side, theirs) for side in ("pylance", "here")]
    outcomes = [
        _outcome(lambda: lance.LanceDataset.commit(str(paths[0]), view, read_version=READ)),
        _outcome(lambda: commit_operation(TableRef(STORE, str(paths[1])), message, read_version=READ)),
    ]
    if outcomes[0] != outcomes[1]:
        yield f"{ours} after {theirs}: {outcomes[0]} in pylance, {outcomes[1]} here"
    elif outcomes[0] == "fine":
        pylance, here = (_version(path) for path in paths)
        for part, value in pylance.items():
            if here[part] != value and (ours, theirs, part) not in OTHERWISE:
                yield f"{ours} after {theirs}, {part}: {value} in pylance, {here[part]} here"


# With two segments that cover one fragment, which no writer makes, pylance leaves the older one as it is.
OTHERWISE = {
    ("update column a of 0", "index a, part", "indices"),
    ("index a, part", "update column a of 0", "indices"),
}


def _pairs(world: World) -> list[tuple[str, str]]:
    executed = {name for name, build in OPERATIONS.items() if build is not None}
    ours = [
        name
        for name in world.decoded
        if name != "unknown" and Transaction.new(world.messages[name], READ).name in executed
    ]
    return [(one, other) for one in ours for other in CASES]


def test_most_operations_pass_through_pylance(world: World) -> None:
    missing = set(CASES) - set(world.decoded)
    kinds = {Transaction.new(world.messages[name], READ).name for name in world.decoded}
    assert kinds == set(OPERATIONS) - {
        "reserve_fragments",
        "update_bases",
        "update_mem_wal_state",
        "clone",
    }
    assert len(missing) < len(CASES) / 2


def test_a_sample_of_pairs_ends_as_in_pylance(world: World) -> None:
    results = [text for ours, theirs in _pairs(world)[::SAMPLE] for text in _differences(world, ours, theirs)]
    assert results == []


@pytest.mark.slow
def test_all_pairs_end_as_in_pylance(world: World) -> None:
    pairs = _pairs(world)
    assert len(pairs) > 1000
    results = [text for ours, theirs in pairs for text in _differences(world, ours, theirs)]
    assert results == []
