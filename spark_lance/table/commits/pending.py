"""The state of one commit in progress: its request, the versions it has checked, and open doubts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from google.protobuf.message import Message

from spark_lance.errors import CommitOutcomeUnknownError
from spark_lance.table.commits.idempotent_writes import APPLIED_WRITES, AppliedWrites, IdempotentWrite
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import OfTable, TableRef
from spark_lance.table.format.transaction import Transaction
from spark_lance.table.operations import ReuseEntry, Stamp


@dataclass(frozen=True)
class CommitEnv:
    """The clock and other inputs of a commit besides the store; tests replace them."""

    time_ns: Callable[[], int] = time.time_ns
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random


SYSTEM_ENV = CommitEnv()


@dataclass
class PendingCommit(OfTable):
    """One commit on its way.

    Attributes:
        rows, reuse, strict, once: as in `commit_operation`.
        ledger: the pairs that landed before, as far as they were looked up for `once`.
        restored: the version that a Restore brings back.
        checked: no version up to this one is in the way.
        unfit: operations of others onto which ours must still be fitted.
        recorded: the transaction as it stands in its file; None if there is no file yet.
        constraints: the constraints and fragments that are checked.
        unconfirmed_error: the failure of a put that may still land; None if the fate of every put is known.
    """

    table: TableRef
    transaction: Transaction
    env: CommitEnv
    rows: RowChanges | None = None
    reuse: ReuseEntry | None = None
    strict: bool = False
    once: IdempotentWrite | None = None
    ledger: AppliedWrites = field(default_factory=AppliedWrites)
    restored: Manifest | None = None
    unfit: list[Message] = field(default_factory=list)
    recorded: Transaction | None = None
    constraints: set[object] = field(default_factory=set)
    unconfirmed_error: OSError | None = None

    def __post_init__(self) -> None:
        self.checked = self.transaction.read_version

    def stamp(self, version: int, config: Mapping[str, str]) -> Stamp:
        """Return the stamp of this commit for `version`; `config` has the record of pairs."""
        name = self.transaction.file_name
        if self.once is not None:
            config = {
                APPLIED_WRITES: self.ledger.with_pair(self.once, version, self.env.time_ns() // 10**9).text()
            }
        return Stamp(self.root, name, self.env.time_ns(), self.restored, self.reuse, config, version)

    def is_ours(self, manifest: Manifest) -> bool:
        """Whether a stored version was made by this commit: its transaction's file name has our uuid.

        The rest of the name may differ, for merging moves the version that the commit is computed from.
        """
        return manifest.transaction_file.endswith(f"-{self.transaction.uuid}.txn")


@dataclass(frozen=True)
class CommittedVersion:
    """This commit's version was found in the table: an earlier put went through after all."""

    manifest: Manifest


def unknown_outcome(commit: PendingCommit) -> CommitOutcomeUnknownError:
    """Return the error for a put with an unknown outcome."""
    return CommitOutcomeUnknownError(
        f"the store did not say whether transaction {commit.transaction.uuid} was committed to "
        f"{commit.root}: {commit.unconfirmed_error}. Nothing was deleted; look at its newest "
        "versions before a retry"
    )
