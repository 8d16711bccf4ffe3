"""Commits that land once: a job names itself and numbers its writes, and no number of a job lands twice.

A commit that carries such a pair is made only if the table holds no version by the same job with this number
or a higher one; Delta's rule. Where the pairs are recorded:

    in the transaction       as properties, for readers of the history
    in the manifest's config key `spark_lance.transactions`, the highest number of every job, as JSON:
                             {"through": 12, "applications": {"txn:nightly": [7, 12]}}
                             the kind of pair and the job -> its highest number, and the version that has it

The record travels from version to version, so one look into the newest manifest answers for the whole past,
also for versions that were cleaned up. Every other writer copies config forward; but a restore by another
engine brings back an older config, and a config may be replaced. Hence `through`, the version up to which
the record is known to be complete: the transactions of later versions are read, newest first, until a
version is met whose record says that it is complete up to there. Commits made here move the record forward
with every version (also restores and replaced configs keep it), so there is something to read only where
other engines have committed since, or before the first pair of a table, once.

A version is built from the manifest that was looked at and published only if no other came in between, so
of two attempts that race one is published, and the other then finds it.

What is forgotten: the record holds the 1,000 jobs that committed last; and pairs of versions that another
engine first took out of the record (by a restore) and then cleaned up.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from spark_lance.errors import AlreadyCommittedError, FormatError, OptionError
from spark_lance.io.store import Store
from spark_lance.table.manifest import Manifest
from spark_lance.table.reserved_names import APPLIED_WRITES
from spark_lance.table.transaction import read_transaction
from spark_lance.table.versions.torn import read_whole
from spark_lance.table.versions.versions import list_versions

__all__ = ["APPLIED_WRITES", "AppliedWrites", "IdempotentWrite", "carried", "has_damaged_record", "pair_of"]

logger = logging.getLogger(__name__)

_MOST_APPLICATIONS = 1000
_READ_AT_ONCE = 8

# Kind of pair -> the transaction properties that hold the job and the number. Those of streams are shared
# with other Lance connectors of Spark.
_KINDS: Mapping[str, tuple[str, str]] = {
    "txn": ("spark_lance.txnAppId", "spark_lance.txnVersion"),
    "stream": ("lance.streaming.queryId", "lance.streaming.epochId"),
}


@dataclass(frozen=True)
class IdempotentWrite:
    """A pair that lands once.

    Attributes:
        application: the job's own name, such as the id of a streaming query.
        number: of this write among the job's; only a higher one than the last is committed.
        kind: "txn" or "stream": two jobs of different kinds may have one name.

    Raises:
        OptionError: no name, a negative number, or an unknown kind.
    """

    application: str
    number: int
    kind: str = "txn"

    def __post_init__(self) -> None:
        if not self.application or self.number < 0 or self.kind not in _KINDS:
            raise OptionError(
                f"a commit that lands once needs a name and a number from 0 on, not {self.application!r} "
                f"and {self.number}"
            )

    @property
    def key(self) -> str:
        """What the record calls the job."""
        return f"{self.kind}:{self.application}"

    @property
    def properties(self) -> dict[str, str]:
        """The transaction properties that hold the pair."""
        application, number = _KINDS[self.kind]
        return {application: self.application, number: str(self.number)}


def pair_of(properties: Mapping[str, str]) -> Iterator[IdempotentWrite]:
    """Yield the pairs that a transaction's properties hold; what is not a pair of ours is passed over."""
    for kind, (application, number) in _KINDS.items():
        name, text = properties.get(application), properties.get(number, "")
        if name and text.isascii() and text.isdecimal():
            yield IdempotentWrite(name, int(text), kind)


@dataclass
class AppliedWrites:
    """What is known of the pairs in a table's history.

    Attributes:
        numbers: job -> its highest number, and the version that has it.
        through: `numbers` holds every pair of the versions up to this one.
    """

    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    through: int = 0

    @classmethod
    def parse(cls, manifest: Manifest) -> AppliedWrites:
        """Return the record of a version; an empty one, complete up to nothing, if it has none.

        Raises:
            FormatError: the record is damaged.
        """
        text = manifest.config.get(APPLIED_WRITES)
        if text is None:
            return cls()
        try:
            parsed = json.loads(text)
            numbers = {str(k): (int(n), int(v)) for k, (n, v) in parsed["applications"].items()}
            through = int(parsed["through"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(
                f"config key {APPLIED_WRITES}, which tells what jobs have committed, is damaged ({error}): "
                "delete it",
                path=manifest.path,
            ) from error
        # A version cannot know of later ones.
        return cls(numbers, min(through, manifest.version))

    def find(self, once: IdempotentWrite) -> int | None:
        """Return the version that makes a pair superfluous, None if there is none."""
        number, version = self.numbers.get(once.key, (-1, 0))
        return version if number >= once.number else None

    def refuse(self, once: IdempotentWrite, root: str) -> None:
        """Raise if a pair is superfluous.

        Raises:
            AlreadyCommittedError: it is.
        """
        version = self.find(once)
        if version is not None:
            raise AlreadyCommittedError(
                f"{once.application} has committed number {once.number} or a later one to {root}, as "
                f"version {version}: nothing was committed",
                version,
            )

    def learn(self, store: Store, root: str, latest: Manifest) -> None:
        """Take in every pair of the history up to `latest`.

        Raises:
            FormatError: a version, or the record of the newest one, is damaged.
            OSError: the store failed.
        """
        floor = self._merge(AppliedWrites.parse(latest), self.through)
        if floor < latest.version:
            self._take_in(store, root, latest)
            self._read_older(store, root, latest.version, floor)
        self.through = latest.version

    def text(self) -> str:
        """Return the record as the config holds it."""
        kept = sorted(self.numbers.items(), key=lambda item: item[1][1])[-_MOST_APPLICATIONS:]
        record = {"through": self.through, "applications": {job: list(pair) for job, pair in kept}}
        return json.dumps(record, separators=(",", ":"))

    def with_pair(self, once: IdempotentWrite, version: int) -> AppliedWrites:
        """Return the record of the version that brings a pair."""
        return AppliedWrites({**self.numbers, once.key: (once.number, version)}, version)

    def _read_older(self, store: Store, root: str, newest: int, floor: int) -> None:
        """Read versions before the newest, newest first, down to where a record is complete."""
        older = [file for file in reversed(list_versions(store, root)) if floor < file.version < newest]
        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            for start in range(0, len(older), _READ_AT_ONCE):
                group = older[start : start + _READ_AT_ONCE]
                for manifest in pool.map(lambda file: read_whole(store, file.path, file.naming), group):
                    if manifest is None:
                        continue
                    if manifest.version <= floor:
                        return
                    try:
                        floor = self._merge(AppliedWrites.parse(manifest), floor)
                    except FormatError as error:
                        # Somebody has taken it away since; its own sources are read instead.
                        logger.warning("%s", error)
                    if manifest.version > floor:
                        self._take_in(store, root, manifest)

    def _take_in(self, store: Store, root: str, manifest: Manifest) -> None:
        try:
            transaction = read_transaction(store, root, manifest)
        except FormatError as error:
            # Every commit with a pair puts its transaction into the manifest: this one had none.
            logger.info("version %d of %s is taken to hold no pair: %s", manifest.version, root, error)
            return
        for once in pair_of(transaction.properties):
            self._merge(AppliedWrites({once.key: (once.number, manifest.version)}), 0)

    def _merge(self, other: AppliedWrites, floor: int) -> int:
        for job, pair in other.numbers.items():
            self.numbers[job] = max(self.numbers.get(job, pair), pair)
        return max(floor, other.through)


def has_damaged_record(manifest: Manifest) -> bool:
    """Return whether the record of a version cannot be read, so that it has to be deleted."""
    try:
        AppliedWrites.parse(manifest)
    except FormatError:
        return True
    return False


def carried(latest: Manifest, number: int) -> dict[str, str]:
    """Return the record as config of version `number`, which is built on `latest` and brings no pair.

    Nothing if there is no record. One that is not complete up to `latest` stays as it is: reading what it
    lacks, and what to do if it is damaged, is left to the next commit that needs it.
    """
    if APPLIED_WRITES not in latest.config:
        return {}
    try:
        record = AppliedWrites.parse(latest)
    except FormatError:
        return {}
    if record.through == latest.version:
        record.through = number
    return {APPLIED_WRITES: record.text()}
