"""The commit loop: every race and every lost answer by name, without threads."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap

import spark_lance
from spark_lance.errors import (
    AlreadyCommittedError,
    AtomicPutUnsupportedError,
    CommitOutcomeUnknownError,
    FormatError,
    IncompatibleConflictError,
    OptionError,
    RetriesExhaustedError,
    RetryableConflictError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedFormatError,
    VersionNotFoundError,
)
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.io.local import LocalStore
from spark_lance.io.locations import join
from spark_lance.io.memory import MemoryStore
from spark_lance.io.retry import RetryPolicy
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation, create_first_version, create_table
from spark_lance.table.commits.commit_options import COMMIT_MESSAGE, commit_options
from spark_lance.table.commits.idempotent_writes import IdempotentWrite
from spark_lance.table.commits.proposal import CommitEnv
from spark_lance.table.format.manifest import Manifest, pack_manifest
from spark_lance.table.format.paths import ManifestNaming, manifest_path
from spark_lance.table.format.rowids import decode_row_versions, fragment_row_ids
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.operations.append import append_message
from spark_lance.table.operations.next_version import CommitContext
from spark_lance.table.operations.overwrite import overwrite_message
from spark_lance.table.versions.versions import list_versions, load_latest, load_version
from tests.wrapped_store import WrappedStore

Step = Callable[["Scripted", str, bytes], None]
SCHEMA = Schema.from_arrow(pa.schema({"a": pa.int32()}))
PLAIN = MemoryStore()


@dataclass(frozen=True)
class Scripted(WrappedStore):
    """A store in which each coming put_if_absent is replaced by a step; later ones are real.

    `blind` counts down: while it is positive, no manifest can be read.
    """

    steps: list[Step] = field(default_factory=list)
    blind: list[None] = field(default_factory=list)

    def put_if_absent(self, path: str, data: bytes, *, sync: bool = False) -> None:
        if self.steps:
            self.steps.pop(0)(self, path, data)
        else:
            super().put_if_absent(path, data, sync=sync)

    def size(self, path: str) -> int:
        if self.blind:
            self.blind.pop()
            raise ConnectionError("no route to store")
        return super().size(path)


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    def env(self) -> CommitEnv:
        ticks = itertools.count(1_700_000_000_000_000_001, 1000)
        return CommitEnv(lambda: next(ticks), lambda: self.now, self.sleep, lambda: 0.5)


def put(store: Scripted, path: str, data: bytes) -> None:
    """The store does what it should."""
    WrappedStore.put_if_absent(store, path, data)


def lost_answer(store: Scripted, path: str, data: bytes) -> None:
    """The object is made, but the connection breaks before the answer."""
    put(store, path, data)
    raise ConnectionError("reset by peer")


def own_retry_refused(store: Scripted, path: str, data: bytes) -> None:
    """The client sends the request twice; the first one wins, the second one is answered."""
    put(store, path, data)
    put(store, path, data)


def never_sent(store: Scripted, path: str, data: bytes) -> None:
    """The connection fails before anything happens."""
    raise ConnectionError("no route to store")


def denied(store: Scripted, path: str, data: bytes) -> None:
    """The store refuses."""
    raise PermissionError(13, "read-only")


def full(store: Scripted, path: str, data: bytes) -> None:
    """The disk is full."""
    raise OSError(28, "no space left on device")


def rival(store: Scripted, path: str, data: bytes) -> None:
    """Another writer appends just before."""
    root = path.partition("/_versions/")[0]
    commit_operation(
        TableRef(PLAIN, root),
        append_message([fragment()]),
        read_version=load_latest(TableRef(PLAIN, root)).version,
    )
    put(store, path, data)


def blinded(step: Step) -> Step:
    """As `step`, and then manifests cannot be read once."""

    def run(store: Scripted, path: str, data: bytes) -> None:
        store.blind.append(None)
        step(store, path, data)

    return run


def fragment(rows: int = 3) -> table_pb2.DataFragment:
    file = table_pb2.DataFile(
        path=f"{uuid.uuid4().hex}.lance",
        fields=[0],
        column_indices=[0],
        file_major_version=2,
        file_minor_version=2,
    )
    return table_pb2.DataFragment(files=[file], physical_rows=rows)


@pytest.fixture
def root() -> str:
    place = f"/commit/{uuid.uuid4().hex}"
    create_table(TableRef(PLAIN, place), SCHEMA, [fragment()])
    return place


def append_with(
    *steps: Step,
    root: str,
    read_version: int = 1,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> Manifest:
    return commit_operation(
        TableRef(Scripted.around(MemoryStore(), steps=list(steps)), root),
        append_message([fragment()]),
        read_version=read_version,
        retry=retry or RetryPolicy(attempts=4),
        env=(clock or Clock()).env(),
    )


def history(root: str) -> list[str]:
    """Check the chain of versions and return the operation of each."""
    versions = list_versions(TableRef(PLAIN, root))
    assert [file.version for file in versions] == list(range(1, len(versions) + 1))
    names = []
    for file in versions:
        manifest = load_version(TableRef(PLAIN, root), file.version)
        transaction = read_transaction(TableRef(PLAIN, root), manifest)
        assert PLAIN.read(join(root, "_transactions", manifest.transaction_file)) == transaction.pack()
        names.append(str(transaction.name))
    return names


def paths(manifest: Manifest) -> list[str]:
    return [file.path for fragment in manifest.fragments for file in fragment.files]


def test_create_then_append(root: str) -> None:
    first = load_latest(TableRef(PLAIN, root))
    assert (first.version, first.naming, first.max_fragment_id) == (1, ManifestNaming.V2, 0)
    assert first.schema == SCHEMA
    assert first.file_version is FileVersion.V2_2
    writer = first.message.writer_version
    major, _, rest = spark_lance.__version__.partition(".")
    assert (writer.library, writer.version) == ("spark_lance", f"{int(major) + 100}.{rest}")
    # What Lance before 0.39 compares, without a look at the library.
    assert tuple(map(int, writer.version.split("."))) >= (0, 8, 15)
    assert not first.uses_stable_row_ids
    second = append_with(root=root)
    assert second.version == 2
    assert [fragment.id for fragment in load_latest(TableRef(PLAIN, root)).fragments] == [0, 1]
    assert load_latest(TableRef(PLAIN, root)).message.timestamp.nanos % 1000 == 1
    assert history(root) == ["overwrite", "append"]


def test_properties_are_kept_with_the_transaction(root: str) -> None:
    append = append_message([fragment()])
    manifest = commit_operation(TableRef(PLAIN, root), append, read_version=1, properties={"job": "7"})
    assert dict(read_transaction(TableRef(PLAIN, root), manifest).properties) == {"job": "7"}


def test_a_rival_that_wins_is_rebased_on(root: str) -> None:
    clock = Clock()
    ours = append_with(rival, root=root, clock=clock)
    assert ours.version == 3
    assert [fragment.id for fragment in ours.fragments] == [0, 1, 2]
    assert history(root) == ["overwrite", "append", "append"]
    assert len(clock.sleeps) == 1
    transaction = read_transaction(TableRef(PLAIN, root), ours)
    assert transaction.read_version == 1
    assert len(PLAIN.list(join(root, "_transactions"))) == 3


@pytest.mark.parametrize("at_once", [True, False], ids=["first attempt", "second attempt"])
def test_what_is_fitted_onto_a_newer_version_is_in_its_file_too(root: str, at_once: bool) -> None:
    """The operation changes after its file was written, and the name of the file does not."""
    pb = transaction_pb2.Transaction

    def rewrite_column() -> None:
        (old,) = load_latest(TableRef(PLAIN, root)).fragments
        update = pb.Update(
            updated_fragments=[old], fields_modified=[0], update_mode=pb.Update.REWRITE_COLUMNS
        )
        commit_operation(TableRef(PLAIN, root), update, read_version=1)

    def column_is_rewritten(store: Scripted, path: str, data: bytes) -> None:
        rewrite_column()
        put(store, path, data)

    entry = table_pb2.IndexMetadata(
        uuid=table_pb2.UUID(uuid=uuid.uuid4().bytes),
        fields=[0],
        name="a_idx",
        dataset_version=1,
        fragment_bitmap=BitMap([0]).serialize(),
    )
    if at_once:
        rewrite_column()
    ours = commit_operation(
        TableRef(Scripted.around(MemoryStore(), steps=[] if at_once else [column_is_rewritten]), root),
        pb.CreateIndex(new_indices=[entry]),
        read_version=1,
        retry=RetryPolicy(attempts=2),
        env=Clock().env(),
    )
    transaction = read_transaction(TableRef(PLAIN, root), ours)
    assert transaction.read_version == 1
    (fitted,) = transaction.message.create_index.new_indices
    assert not BitMap.deserialize(fitted.fragment_bitmap)
    assert history(root) == ["overwrite", "update", "create_index"]


def test_back_off_grows_and_attempts_are_bounded(root: str) -> None:
    clock = Clock()
    with pytest.raises(RetriesExhaustedError, match="all 4 attempts"):
        append_with(rival, rival, rival, rival, root=root, clock=clock)
    assert clock.sleeps == pytest.approx([0.0375, 0.075, 0.15])
    assert history(root) == ["overwrite"] + ["append"] * 4


def test_total_time_is_bounded(root: str) -> None:
    clock = Clock()
    policy = RetryPolicy(attempts=100, base_seconds=8, cap_seconds=8, total_seconds=20)
    with pytest.raises(RetriesExhaustedError, match="all 4 attempts"):
        append_with(*[rival] * 100, root=root, retry=policy, clock=clock)
    assert clock.now <= 20


@pytest.mark.parametrize("step", [lost_answer, own_retry_refused])
def test_a_put_that_went_through_unnoticed_is_ours(root: str, step: Step) -> None:
    clock = Clock()
    ours = append_with(step, root=root, clock=clock)
    assert ours.version == 2
    assert clock.sleeps == []
    assert history(root) == ["overwrite", "append"]
    assert paths(ours) == paths(load_latest(TableRef(PLAIN, root)))


def test_waits_for_other_writers_are_as_short_as_commits(tmp_path: Path) -> None:
    """A first attempt of 20 ms and a base of a second: waits are a hundredth of what they are for a store."""
    place, local, clock = str(tmp_path / "t"), LocalStore(), Clock()
    create_table(TableRef(local, place), SCHEMA, [fragment()])

    def rival_was_first(store: Scripted, path: str, data: bytes) -> None:
        clock.now += 0.02
        version = load_latest(TableRef(local, place)).version
        commit_operation(TableRef(local, place), append_message([fragment()]), read_version=version)
        put(store, path, data)

    def slow_failure(store: Scripted, path: str, data: bytes) -> None:
        clock.now += 0.02
        raise ConnectionError("no route to store")

    for step, waits in ((rival_was_first, [0.0075, 0.015, 0.03]), (slow_failure, [0.75, 1.5, 3.0])):
        clock.sleeps.clear()
        operation = append_message([fragment()])
        commit_operation(
            TableRef(Scripted.around(LocalStore(), steps=[step] * 3), place),
            operation,
            read_version=load_latest(TableRef(local, place)).version,
            retry=RetryPolicy(attempts=4, base_seconds=1.0),
            env=clock.env(),
        )
        assert clock.sleeps == pytest.approx(waits)


def test_a_policy_without_waits(tmp_path: Path) -> None:
    place, local = str(tmp_path / "t"), LocalStore()
    create_table(TableRef(local, place), SCHEMA, [fragment()])

    def rival_was_first(store: Scripted, path: str, data: bytes) -> None:
        clock.now += 0.02
        commit_operation(TableRef(local, place), append_message([fragment()]), read_version=1)
        put(store, path, data)

    clock = Clock()
    store, policy = (
        Scripted.around(LocalStore(), steps=[rival_was_first]),
        RetryPolicy(attempts=2, base_seconds=0.0),
    )
    append = append_message([fragment()])
    assert (
        commit_operation(
            TableRef(store, place), append, read_version=1, retry=policy, env=clock.env()
        ).version
        == 3
    )
    assert clock.sleeps == []


def test_a_commit_that_is_refused_before_its_put_leaves_no_transaction(root: str) -> None:
    """The file is on its way while the conflict is found."""
    commit_operation(TableRef(PLAIN, root), overwrite_message(SCHEMA, [fragment()]), read_version=1)
    before = sorted(PLAIN.list(join(root, "_transactions")))
    with pytest.raises(IncompatibleConflictError):
        append_with(root=root)
    assert sorted(PLAIN.list(join(root, "_transactions"))) == before


def test_without_its_transaction_file_nothing_is_committed(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = MemoryStore.put

    def refuses(self: MemoryStore, path: str, data: bytes) -> None:
        if path.endswith(".txn"):
            raise ConnectionError("no route to store")
        plain(self, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "put", refuses)
        with pytest.raises(ConnectionError):
            append_with(root=root)
    commit_operation(TableRef(PLAIN, root), overwrite_message(SCHEMA, [fragment()]), read_version=1)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "put", refuses)
        # Where the proposal fails as well, its error is what is told.
        with pytest.raises(IncompatibleConflictError):
            append_with(root=root)
    assert history(root) == ["overwrite", "overwrite"]


def test_the_last_attempt_on_a_local_disk_looks_whose_the_version_is(tmp_path: Path) -> None:
    """There a version of that number is left to the next attempt; after the last one there is none."""
    place, local = str(tmp_path / "t"), LocalStore()
    create_table(TableRef(local, place), SCHEMA, [fragment()])

    def attempt(step: Step) -> Manifest:
        store = Scripted.around(LocalStore(), steps=[step])
        operation = append_message([fragment()])
        version = load_latest(TableRef(local, place)).version
        once = RetryPolicy(attempts=1)
        return commit_operation(
            TableRef(store, place), operation, read_version=version, retry=once, env=Clock().env()
        )

    assert attempt(own_retry_refused).version == 2

    def rival_was_first(store: Scripted, path: str, data: bytes) -> None:
        commit_operation(TableRef(local, place), append_message([fragment()]), read_version=2)
        put(store, path, data)

    with pytest.raises(RetriesExhaustedError):
        attempt(rival_was_first)
    assert [file.version for file in list_versions(TableRef(local, place))] == [1, 2, 3]


def test_a_lost_answer_and_a_rival_on_top(root: str) -> None:
    def lost_then_rival(store: Scripted, path: str, data: bytes) -> None:
        put(store, path, data)
        commit_operation(TableRef(PLAIN, root), append_message([fragment()]), read_version=2)
        raise ConnectionError("reset by peer")

    assert append_with(lost_then_rival, root=root).version == 2
    assert history(root) == ["overwrite", "append", "append"]


def test_a_failed_put_is_repeated(root: str) -> None:
    assert append_with(never_sent, never_sent, root=root).version == 2
    assert history(root) == ["overwrite", "append"]


def test_a_put_that_lands_late_is_found_in_the_history(root: str) -> None:
    late: list[tuple[str, bytes]] = []

    def timed_out(store: Scripted, path: str, data: bytes) -> None:
        late.append((path, data))
        raise TimeoutError("no answer")

    clock = Clock()

    class LandsWhileSleeping(Clock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            PLAIN.put_if_absent(*late.pop())
            commit_operation(TableRef(PLAIN, root), append_message([fragment()]), read_version=2)

    clock = LandsWhileSleeping()
    ours = append_with(timed_out, root=root, clock=clock)
    assert ours.version == 2
    assert history(root) == ["overwrite", "append", "append"]


def test_a_late_put_meets_our_second_one(root: str) -> None:
    held: list[tuple[str, bytes]] = []

    def timed_out(store: Scripted, path: str, data: bytes) -> None:
        held.append((path, data))
        raise TimeoutError("no answer")

    def first_lands_now(store: Scripted, path: str, data: bytes) -> None:
        put(store, *held.pop())
        put(store, path, data)

    assert append_with(timed_out, first_lands_now, root=root).version == 2
    assert history(root) == ["overwrite", "append"]


@pytest.mark.parametrize("step", [lost_answer, never_sent, own_retry_refused])
def test_an_outcome_that_cannot_be_told_is_unknown(root: str, step: Step) -> None:
    with pytest.raises(CommitOutcomeUnknownError, match="Nothing was deleted"):
        append_with(blinded(step), root=root)
    assert len(PLAIN.list(join(root, "_transactions"))) == 2


def test_a_store_that_never_answers_leaves_the_outcome_unknown(root: str) -> None:
    with pytest.raises(CommitOutcomeUnknownError):
        append_with(*[never_sent] * 4, root=root)


def test_a_doubt_outlives_a_later_failure(root: str) -> None:
    class FailsWhileSleeping(Clock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            raise BrokenPipeError("the store went away")

    with pytest.raises(CommitOutcomeUnknownError) as caught:
        append_with(never_sent, root=root, clock=FailsWhileSleeping())
    assert isinstance(caught.value.__cause__, BrokenPipeError)


def test_a_doubt_ends_when_the_version_is_another_ones(root: str) -> None:
    with pytest.raises(RetriesExhaustedError):
        append_with(never_sent, rival, rival, rival, root=root)

    def rival_overwrites(store: Scripted, path: str, data: bytes) -> None:
        latest = load_latest(TableRef(PLAIN, root)).version
        commit_operation(TableRef(PLAIN, root), overwrite_message(SCHEMA, []), read_version=latest)
        raise ConnectionError("reset by peer")

    latest = load_latest(TableRef(PLAIN, root)).version
    with pytest.raises(IncompatibleConflictError):
        append_with(rival_overwrites, root=root, read_version=latest)


@pytest.mark.parametrize(("step", "error"), [(denied, PermissionError), (full, OSError)])
def test_a_plain_refusal_is_passed_on(root: str, step: Step, error: type[OSError]) -> None:
    clock = Clock()
    with pytest.raises(error):
        append_with(step, root=root, clock=clock)
    assert clock.sleeps == []
    assert history(root) == ["overwrite"]


def test_a_store_without_the_primitive(root: str) -> None:
    def unsupported(store: Scripted, path: str, data: bytes) -> None:
        raise AtomicPutUnsupportedError("no such primitive")

    with pytest.raises(AtomicPutUnsupportedError):
        append_with(unsupported, root=root)


def test_a_rival_overwrite_stops_an_append(root: str) -> None:
    commit_operation(TableRef(PLAIN, root), overwrite_message(SCHEMA, [fragment()]), read_version=1)
    with pytest.raises(IncompatibleConflictError, match=r"version 2 of .* \(overwrite\)"):
        append_with(root=root)
    assert history(root) == ["overwrite", "overwrite"]


def test_of_two_overwrites_the_second_must_start_again(root: str) -> None:
    commit_operation(TableRef(PLAIN, root), overwrite_message(SCHEMA, [fragment()]), read_version=1)
    with pytest.raises(RetryableConflictError, match="run the operation again"):
        commit_operation(TableRef(PLAIN, root), overwrite_message(SCHEMA, [fragment()]), read_version=1)


def test_an_overwrite_replaces_appends_it_did_not_know(root: str) -> None:
    append_with(root=root)
    new = fragment()
    commit_operation(TableRef(PLAIN, root), overwrite_message(SCHEMA, [new]), read_version=1)
    latest = load_latest(TableRef(PLAIN, root))
    assert paths(latest) == [new.files[0].path]
    assert [fragment.id for fragment in latest.fragments] == [2]
    assert latest.max_fragment_id == 2


def test_options_hold_for_the_commits_of_a_block(root: str) -> None:
    once = RetryPolicy(attempts=1)
    with commit_options(message="why", properties={"job": "7"}, retry=once):
        first = commit_operation(
            TableRef(PLAIN, root), append_message([]), read_version=1, properties={"job": "8"}
        )
        with commit_options(message="inner"):
            second = commit_operation(TableRef(PLAIN, root), append_message([]), read_version=1)
            with pytest.raises(RetriesExhaustedError, match="all 1 attempts"):
                commit_operation(
                    TableRef(Scripted.around(MemoryStore(), steps=[rival]), root),
                    append_message([]),
                    read_version=1,
                )
            other = create_table(TableRef(PLAIN, fresh()), SCHEMA)
    third = commit_operation(TableRef(PLAIN, root), append_message([]), read_version=1)
    results = [
        dict(read_transaction(TableRef(PLAIN, root), version).properties)
        for version in (first, second, third)
    ]
    assert results == [{COMMIT_MESSAGE: "why", "job": "8"}, {COMMIT_MESSAGE: "inner", "job": "7"}, {}]
    result = other.path.partition("/_versions/")[0]
    assert read_transaction(TableRef(PLAIN, result), other).properties[COMMIT_MESSAGE] == "inner"


def test_users_say_it_to_the_package(root: str) -> None:
    table = spark_lance.dataset(f"memory://{root}")
    with spark_lance.commit_options(message="settings", retry=spark_lance.RetryPolicy(attempts=3)):
        table = table.update_config({"k": "v"})
    transaction = read_transaction(table.table, table.manifest)
    assert dict(transaction.properties) == {COMMIT_MESSAGE: "settings"}


def test_a_strict_commit_is_the_next_version_or_none(root: str) -> None:
    assert (
        commit_operation(TableRef(PLAIN, root), append_message([]), read_version=1, strict=True).version == 2
    )
    with pytest.raises(RetryableConflictError, match="strict"):
        commit_operation(TableRef(PLAIN, root), append_message([]), read_version=1, strict=True)
    store = Scripted.around(MemoryStore(), steps=[rival])
    with pytest.raises(RetryableConflictError, match="strict"):
        commit_operation(
            TableRef(store, root),
            append_message([]),
            read_version=2,
            strict=True,
            env=Clock().env(),
        )
    assert history(root) == ["overwrite", "append", "append"]


def store_version(root: str, message: table_pb2.Manifest, transaction: bytes | None) -> None:
    """Publish a version as another writer would, with any transaction bytes or none."""
    data = pack_manifest(message, b"", transaction or b"")
    if transaction is None:
        message.ClearField("transaction_section")
        data = pack_manifest(message, b"", b"x" * (21 << 20))
    PLAIN.put(manifest_path(root, message.version, ManifestNaming.V2), data)


def rival_message(root: str, **fields: object) -> table_pb2.Manifest:
    message = table_pb2.Manifest()
    message.CopyFrom(load_latest(TableRef(PLAIN, root)).message)
    message.version += 1
    message.transaction_file = ""
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def test_a_version_without_a_transaction_stops_everything(root: str) -> None:
    store_version(root, rival_message(root), None)
    with pytest.raises(IncompatibleConflictError, match="no readable transaction"):
        append_with(root=root)
    assert append_with(root=root, read_version=2).version == 3


def test_a_version_without_a_transaction_is_taken_to_hold_no_pair(root: str) -> None:
    store_version(root, rival_message(root), None)
    for number in (1, 2):
        operation = append_message([fragment()])
        version = load_latest(TableRef(PLAIN, root)).version
        commit_operation(
            TableRef(PLAIN, root), operation, read_version=version, write_id=IdempotentWrite("job", number)
        )
    with pytest.raises(AlreadyCommittedError):
        commit_operation(
            TableRef(PLAIN, root),
            append_message([fragment()]),
            read_version=4,
            write_id=IdempotentWrite("job", 1),
        )
    assert load_latest(TableRef(PLAIN, root)).version == 4


def test_an_operation_from_the_future_stops_everything(root: str) -> None:
    future = (
        transaction_pb2.Transaction(uuid="f", read_version=1).SerializeToString() + b"\xa2\x38\x02\x08\x01"
    )
    store_version(root, rival_message(root), future)
    with pytest.raises(IncompatibleConflictError, match="unknown to this release"):
        append_with(root=root)


def test_a_flag_found_while_rebasing_stops_the_commit(root: str) -> None:
    append = transaction_pb2.Transaction(uuid="r", read_version=1)
    append.append.SetInParent()
    store_version(root, rival_message(root, writer_feature_flags=1 << 20), append.SerializeToString())
    with pytest.raises(UnsupportedFormatError, match=str(1 << 20)):
        append_with(root=root)
    assert load_latest(TableRef(PLAIN, root)).version == 2


def test_history_that_was_cleaned_up_cannot_be_checked(root: str) -> None:
    for version in (1, 2, 3):
        append_with(root=root, read_version=version)
    PLAIN.delete(manifest_path(root, 2, ManifestNaming.V2), root)
    with pytest.raises(IncompatibleConflictError, match=r"version 2 of .* was cleaned up"):
        append_with(root=root)
    assert append_with(root=root, read_version=2).version == 5


def test_a_read_version_from_the_future(root: str) -> None:
    with pytest.raises(VersionNotFoundError, match="version 9"):
        append_with(root=root, read_version=9)


def test_a_manifest_that_lies_about_its_version_is_not_built_on(root: str) -> None:
    message = rival_message(root)
    message.version = 77
    data = pack_manifest(message, b"", b"")
    PLAIN.put(manifest_path(root, 2, ManifestNaming.V2), data)
    with pytest.raises(FormatError, match="version 77"):
        append_with(root=root)


def test_fragment_ids_that_collide_are_not_committed(root: str) -> None:
    twice = fragment()
    twice.id = 9
    commit_operation(TableRef(PLAIN, root), append_message([twice]), read_version=1)
    with pytest.raises(FormatError, match="id 9"):
        commit_operation(TableRef(PLAIN, root), append_message([twice]), read_version=2)
    assert history(root) == ["overwrite", "append"]


def test_no_table() -> None:
    with pytest.raises(TableNotFoundError):
        append_with(root="/commit/nowhere")


def test_operations_that_are_not_executed_are_refused_by_name(root: str) -> None:
    with pytest.raises(UnsupportedFormatError, match="update_mem_wal_state"):
        commit_operation(
            TableRef(PLAIN, root), transaction_pb2.Transaction.UpdateMemWalState(), read_version=1
        )
    based = overwrite_message(SCHEMA, [])
    based.initial_bases.add(path="/x")
    with pytest.raises(OptionError, match="add_bases"):
        commit_operation(TableRef(PLAIN, root), based, read_version=1)


# Creation.


def fresh() -> str:
    return f"/commit/{uuid.uuid4().hex}"


def create_with(*steps: Step, root: str, clock: Clock | None = None) -> Manifest:
    store = Scripted.around(MemoryStore(), steps=list(steps))
    policy = RetryPolicy(attempts=4)
    return create_table(
        TableRef(store, root), SCHEMA, [fragment()], retry=policy, env=(clock or Clock()).env()
    )


def test_only_one_creator_wins() -> None:
    root = fresh()

    def rival_creates(store: Scripted, path: str, data: bytes) -> None:
        create_table(TableRef(PLAIN, root), SCHEMA, [fragment()])
        put(store, path, data)

    with pytest.raises(TableExistsError, match=root):
        create_with(rival_creates, root=root)
    assert history(root) == ["overwrite"]
    with pytest.raises(TableExistsError):
        create_with(root=root)


@pytest.mark.parametrize(
    "steps", [[lost_answer], [own_retry_refused], [never_sent], [never_sent, lost_answer]]
)
def test_creation_survives_a_store_that_fails(steps: list[Step]) -> None:
    root = fresh()
    assert create_with(*steps, root=root).version == 1
    assert history(root) == ["overwrite"]


@pytest.mark.parametrize("goes_on", [False, True], ids=["alone", "and a rival appends"])
def test_a_creation_that_lands_late_is_found(goes_on: bool) -> None:
    root = fresh()
    late: list[tuple[str, bytes]] = []

    def timed_out(store: Scripted, path: str, data: bytes) -> None:
        late.append((path, data))
        raise TimeoutError("no answer")

    class LandsWhileSleeping(Clock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            PLAIN.put_if_absent(*late.pop())
            if goes_on:
                commit_operation(TableRef(PLAIN, root), append_message([fragment()]), read_version=1)

    assert create_with(timed_out, root=root, clock=LandsWhileSleeping()).version == 1
    assert history(root) == ["overwrite", "append"][: 1 + goes_on]


def test_a_creation_that_cannot_be_told_is_unknown() -> None:
    with pytest.raises(CommitOutcomeUnknownError):
        create_with(blinded(lost_answer), root=fresh())
    with pytest.raises(CommitOutcomeUnknownError):
        create_with(*[never_sent] * 4, root=fresh())


def test_a_creation_in_doubt_after_which_a_rival_creates() -> None:
    root = fresh()

    def rival_then_reset(store: Scripted, path: str, data: bytes) -> None:
        create_table(TableRef(PLAIN, root), SCHEMA, [fragment()])
        raise ConnectionError("reset by peer")

    with pytest.raises(TableExistsError):
        create_with(rival_then_reset, root=root)


def test_a_table_whose_first_version_was_cleaned_up_still_exists(root: str) -> None:
    append_with(root=root)
    PLAIN.delete(manifest_path(root, 1, ManifestNaming.V2), root)
    with pytest.raises(TableExistsError):
        create_with(root=root)


def test_creation_options() -> None:
    root = fresh()
    manifest = create_table(
        TableRef(PLAIN, root),
        Schema.from_arrow(pa.schema({"a": pa.int32()}, metadata={"about": "x"})),
        version=FileVersion.V2_1,
        stable_row_ids=True,
        config={"k": "v"},
        properties={"p": "q"},
    )
    again = load_latest(TableRef(PLAIN, root))
    assert again.message == manifest.message
    assert again.file_version is FileVersion.V2_1
    assert again.uses_stable_row_ids
    assert again.max_fragment_id is None
    assert dict(again.config) == {"k": "v"}
    assert dict(again.schema.metadata) == {"about": "x"}
    assert (again.message.reader_feature_flags, again.message.writer_feature_flags) == (2, 10)
    transaction = read_transaction(TableRef(PLAIN, root), again)
    assert (transaction.read_version, dict(transaction.properties)) == (0, {"p": "q"})


def test_a_table_may_begin_with_another_version(root: str) -> None:
    source = append_with(root=root)
    clone = fresh()
    operation = transaction_pb2.Transaction.Clone(is_shallow=True, ref_version=2, ref_path=root)

    def build(context: CommitContext) -> Manifest:
        message = table_pb2.Manifest()
        message.CopyFrom(source.message)
        message.transaction_file = context.transaction_file
        return Manifest(message, b"", ManifestNaming.V2, manifest_path(clone, 2, ManifestNaming.V2))

    store = Scripted.around(MemoryStore(), steps=[never_sent, lost_answer])
    settings = {"read_version": 2, "properties": {COMMIT_MESSAGE: "a copy"}}
    result = create_first_version(TableRef(store, clone), operation, build, env=Clock().env(), **settings)  # type: ignore[arg-type]
    assert [file.version for file in list_versions(TableRef(PLAIN, clone))] == [result.version] == [2]
    transaction = read_transaction(TableRef(PLAIN, clone), result)
    assert (transaction.name, transaction.read_version) == ("clone", 2)
    assert dict(transaction.properties) == {COMMIT_MESSAGE: "a copy"}
    with pytest.raises(TableExistsError):
        create_first_version(TableRef(PLAIN, clone), operation, build, read_version=2)


# What operations do to row ids and to everything else in a manifest.


def test_stable_row_ids_are_given_out_once() -> None:
    root = fresh()
    create_table(TableRef(PLAIN, root), SCHEMA, [fragment(3), fragment(2)], stable_row_ids=True)
    store = Scripted.around(MemoryStore(), steps=[rival])
    ours = commit_operation(
        TableRef(store, root), append_message([fragment(4)]), read_version=1, env=Clock().env()
    )
    assert ours.next_row_id == 12
    ids = [fragment_row_ids(fragment).tolist() for fragment in ours.fragments]
    assert ids == [[0, 1, 2], [3, 4], [5, 6, 7], [8, 9, 10, 11]]
    for fragment_message, version in zip(ours.fragments, (1, 1, 2, 3), strict=True):
        rows = fragment_message.physical_rows
        for data in (
            fragment_message.inline_created_at_versions,
            fragment_message.inline_last_updated_at_versions,
        ):
            assert decode_row_versions(data, rows).tolist() == [version] * rows
    commit_operation(TableRef(PLAIN, root), overwrite_message(SCHEMA, [fragment(1)]), read_version=3)
    latest = load_latest(TableRef(PLAIN, root))
    assert fragment_row_ids(latest.fragments[0]).tolist() == [12]
    assert (latest.fragments[0].id, latest.next_row_id) == (4, 13)


def test_given_row_ids_are_kept_and_completed() -> None:
    root = fresh()
    create_table(TableRef(PLAIN, root), SCHEMA, [fragment(3)], stable_row_ids=True)
    partial, whole, excess = fragment(3), fragment(2), fragment(1)
    for target in (partial, whole, excess):
        target.inline_row_ids = bytes.fromhex("0a060a0408011003")  # 1 and 2
    latest = commit_operation(TableRef(PLAIN, root), append_message([partial, whole]), read_version=1)
    assert fragment_row_ids(latest.fragments[1]).tolist() == [1, 2, 3]
    assert fragment_row_ids(latest.fragments[2]).tolist() == [1, 2]
    assert latest.next_row_id == 4
    with pytest.raises(FormatError):
        commit_operation(TableRef(PLAIN, root), append_message([excess]), read_version=2)


def crowded(root: str) -> table_pb2.Manifest:
    """A version that uses every part of a manifest that may stand beside an append."""
    message = rival_message(root)
    message.table_metadata["about"] = "x"
    message.config["lance.auto_cleanup.interval"] = "20"
    message.schema_metadata["s"] = b"\x01"
    message.version_aux_data = 5
    message.clustering.provider = "c"
    message.max_clustering_id = 3
    message.max_allocated_field_id = 9
    message.writer_feature_flags = 32768 | 8 | 1024
    message.reader_feature_flags = 1024
    message.tag = "stale"
    message.transaction_section_deprecated = 4
    message.MergeFromString(b"\xc2\x3e\x03abc")  # field 1000
    message.fragments[0].MergeFromString(b"\x82\x01\x02hi")  # field 16
    return message


def test_everything_else_survives_an_append(root: str) -> None:
    before = crowded(root)
    store_version(root, before, b"")
    after = append_with(root=root, read_version=2).message
    assert (after.version, after.writer_version.library) == (3, "spark_lance")
    before.fragments.add().CopyFrom(after.fragments[1])
    before.max_fragment_id = 1
    stamped = ("version", "timestamp", "transaction_file", "writer_version", "transaction_section")
    for name in (*stamped, "tag", "transaction_section_deprecated"):
        before.ClearField(name)
    stripped = table_pb2.Manifest()
    stripped.CopyFrom(load_latest(TableRef(PLAIN, root)).message)
    for name in stamped:
        stripped.ClearField(name)
    assert stripped.SerializeToString(deterministic=True) == before.SerializeToString(deterministic=True)


def test_what_survives_an_overwrite(root: str) -> None:
    store_version(root, crowded(root), b"")
    schema = Schema.from_arrow(pa.schema({"z": pa.utf8()}, metadata={"new": "y"}), first_id=10)
    commit_operation(
        TableRef(PLAIN, root), overwrite_message(schema, [fragment()], {"k": "v"}), read_version=2
    )
    latest = load_latest(TableRef(PLAIN, root))
    assert latest.schema == schema
    assert latest.first_new_field_id == 11
    assert dict(latest.config) == {"lance.auto_cleanup.interval": "20", "k": "v"}
    assert dict(latest.table_metadata) == {"about": "x"}
    assert [fragment.id for fragment in latest.fragments] == [1]
    assert b"\xc2\x3e\x03abc" in latest.message.SerializeToString()


def test_an_overwrite_takes_the_version_of_its_files(root: str) -> None:
    older = fragment()
    older.files[0].file_minor_version = 1
    commit_operation(TableRef(PLAIN, root), overwrite_message(SCHEMA, [older]), read_version=1)
    assert load_latest(TableRef(PLAIN, root)).file_version is FileVersion.V2_1
    commit_operation(TableRef(PLAIN, root), overwrite_message(SCHEMA, []), read_version=2)
    latest = load_latest(TableRef(PLAIN, root))
    assert latest.file_version is FileVersion.V2_1
    assert latest.message.reader_feature_flags == 0
    newer = append_with(root=root, read_version=3)
    assert newer.message.reader_feature_flags == newer.message.writer_feature_flags == 256


def test_fragments_out_of_order_are_sorted(root: str) -> None:
    message = rival_message(root)
    message.fragments.add(id=5, physical_rows=1).files.add(
        path="x", file_major_version=2, file_minor_version=2
    )
    message.fragments.add(id=2, physical_rows=1).files.add(
        path="y", file_major_version=2, file_minor_version=2
    )
    message.ClearField("max_fragment_id")
    store_version(root, message, b"")
    latest = append_with(root=root, read_version=2)
    assert [fragment.id for fragment in latest.fragments] == [0, 2, 5, 6]
    assert latest.max_fragment_id == 6


def test_ids_never_come_back_after_the_last_fragment_went(root: str) -> None:
    message = rival_message(root)
    message.ClearField("fragments")
    message.max_fragment_id = 41
    store_version(root, message, b"")
    assert [fragment.id for fragment in append_with(root=root, read_version=2).fragments] == [42]
    message = rival_message(root)
    message.max_fragment_id = 2**32 - 1
    store_version(root, message, b"")
    with pytest.raises(FormatError, match="used up"):
        append_with(root=root, read_version=4)
