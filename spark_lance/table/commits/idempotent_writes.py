"""Idempotent writes: a job has a name and numbers its writes, and no number of a job is committed twice.

A commit with such a pair succeeds only if the table has no version by the same job with this number or a
higher one (Delta's rule). The pairs are recorded:

    in the transaction       as properties, for readers of the history
    in the manifest's config key `spark_lance.transactions`, the highest number of every job, as JSON:
                             {"through": 12, "applications": {"txn:nightly": [7, 12, 1764086400]}}
                             the kind of pair and the job -> its highest number, the version that has it, and
                             when it was committed (seconds since 1970, UTC)

Each version copies the record, so the newest manifest has the record of the whole history, including versions
that were cleaned up. Every other writer copies the config as well. But a restore by another engine restores
an older config, and a config may be replaced. Hence `through`: the record is complete up to this version. The
transactions of later versions are read, newest first, until a version has a record that is complete up to it.
Commits by this package update the record in every version, including restores and replaced configs. So
transactions are read only if other engines have committed since, and once before the first pair of a table.

A version is built from the manifest that was checked, and published only if no other version was published in
between. So when two attempts race, one is published, and the other then finds it.

The record is bounded by two settings of the table:

    spark_lance.transactions.max_jobs    number of jobs to keep; the oldest are dropped (1,000)
    spark_lance.transactions.max_age     jobs that have not committed for longer are dropped ("90days")

If a job was dropped, the record keeps a digest of 40 bits (`forgotten`). A commit of such a job is refused,
because it may have landed before; a new job is accepted. A commit is also refused if another engine
restored an older version and versions since then were cleaned up. The record cannot detect this if the
version of that restore was cleaned up, too.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from spark_lance.errors import AlreadyCommittedError, CommitError, FormatError, OptionError
from spark_lance.io.stored_json import parse_object
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.reserved_names import APPLIED_WRITES
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.versions.ages import parse_duration
from spark_lance.table.versions.versions import is_set_aside, list_versions, read_whole

logger = logging.getLogger(__name__)

MAX_JOBS, MAX_AGE = f"{APPLIED_WRITES}.max_jobs", f"{APPLIED_WRITES}.max_age"
_DEFAULT_MAX_JOBS = 1000
_DIGEST_BYTES = 5
_READ_AT_ONCE = 8

# Kind of pair -> the transaction properties with the job and the number. Other Lance connectors for Spark use
# the same properties for streams.
_KINDS: Mapping[str, tuple[str, str]] = {
    "txn": ("spark_lance.txnAppId", "spark_lance.txnVersion"),
    "stream": ("lance.streaming.queryId", "lance.streaming.epochId"),
}


@dataclass(frozen=True)
class IdempotentWrite:
    """The job and the number of a write that is committed at most once.

    Attributes:
        application: the name of the job, such as the id of a streaming query.
        number: the number of this write; it is committed only if it is higher than the job's last number.
        kind: "txn" or "stream". Two jobs of different kinds may have the same name.

    Raises:
        OptionError: the name is empty, the number is negative, or the kind is unknown.
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
        """The name of the job in the record."""
        return f"{self.kind}:{self.application}"

    @property
    def properties(self) -> dict[str, str]:
        """The transaction properties that hold the pair."""
        application, number = _KINDS[self.kind]
        return {application: self.application, number: str(self.number)}


def read_idempotent_writes(properties: Mapping[str, str]) -> Iterator[IdempotentWrite]:
    """Yield the idempotent writes in a transaction's properties; ignore other properties."""
    for kind, (application, number) in _KINDS.items():
        name, text = properties.get(application), properties.get(number, "")
        if name and text.isascii() and text.isdecimal():
            yield IdempotentWrite(name, int(text), kind)


@dataclass
class AppliedWrites:
    """The record of the idempotent writes in a table's history.

    Attributes:
        numbers: job -> its highest number, the version that has it, and its commit time (seconds since 1970).
        through: `numbers` is complete for the versions up to this one.
        forgotten: digests of the jobs whose numbers were dropped.
        limits: the maximum number of jobs, and their maximum age in seconds; None for no maximum age.
        hidden: versions since a restore by another engine that were cleaned up; their writes are unknown.
    """

    numbers: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    through: int = 0
    forgotten: set[bytes] = field(default_factory=set)
    limits: tuple[int, float | None] = (_DEFAULT_MAX_JOBS, None)
    hidden: str = ""

    @classmethod
    def parse(cls, manifest: Manifest) -> AppliedWrites:
        """Return the record of a version; an empty record with `through` 0 if the version has none.

        Raises:
            FormatError: the record is damaged.
        """
        text = manifest.config.get(APPLIED_WRITES)
        limits = _parse_limits(manifest)
        if text is None:
            return cls(limits=limits)
        try:
            parsed = parse_object(text)
            numbers = {str(job): _parse_entry(entry) for job, entry in parsed["applications"].items()}
            through = int(parsed["through"])
            forgotten = _parse_digests(parsed.get("forgotten", ""))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(
                f"config key {APPLIED_WRITES}, which tells what jobs have committed, is damaged ({error}): "
                "delete it",
                path=manifest.path,
            ) from error
        # A version cannot know of later ones.
        return cls(numbers, min(through, manifest.version), forgotten, limits)

    def find(self, write_id: IdempotentWrite) -> int | None:
        """Return the version that has this number of the job or a higher one; None if no version has."""
        number, version, _ = self.numbers.get(write_id.key, (-1, 0, 0))
        return version if number >= write_id.number else None

    def refuse(self, write_id: IdempotentWrite, root: str) -> None:
        """Raise unless a write is certainly new.

        Raises:
            AlreadyCommittedError: the job has committed this number or a higher one.
            CommitError: the job was dropped from the record, or versions of its history are unknown.
        """
        version = self.find(write_id)
        if version is not None:
            raise AlreadyCommittedError(
                f"{write_id.application} has committed number {write_id.number} or a later one to {root}, as "
                f"version {version}: nothing was committed",
                version,
            )
        if write_id.key in self.numbers:
            return
        unknown = (
            f"nobody knows whether {write_id.application!r} has committed number {write_id.number} to {root}"
        )
        if _digest(write_id.key) in self.forgotten:
            raise CommitError(
                f"{unknown}: its last number was dropped from the record (config {MAX_JOBS} or {MAX_AGE} "
                "of the table). Nothing was committed; look at the table, then write under another txnAppId"
            )
        if self.hidden:
            raise CommitError(
                f"{unknown}: another engine restored an older version, and {self.hidden} since then were "
                "cleaned up. Nothing was committed; look at the table, then write under another txnAppId"
            )

    def learn(self, table: TableRef, latest: Manifest) -> None:
        """Add every idempotent write of the history up to `latest` to this record.

        Raises:
            FormatError: a version, or the record of the newest version, is damaged.
            OSError: the store failed.
        """
        record = AppliedWrites.parse(latest)
        self.limits = record.limits
        floor = self._merge(record, self.through)
        if floor < latest.version:
            self._add_transaction(table, latest)
            self._read_older(table, latest.version, floor)
        self.through = latest.version

    def text(self) -> str:
        """Return the record as JSON, the value of its config key."""
        record = {
            "through": self.through,
            "applications": {job: list(pair) for job, pair in self.numbers.items()},
        }
        if self.forgotten:
            record["forgotten"] = base64.b64encode(b"".join(sorted(self.forgotten))).decode()
        return json.dumps(record, separators=(",", ":"))

    def add_write(self, write_id: IdempotentWrite, version: int, seconds: int) -> AppliedWrites:
        """Return the record with a new write (seconds since 1970), up to `version`, without old jobs."""
        numbers = {**self.numbers, write_id.key: (write_id.number, version, seconds)}
        most, age = self.limits
        latest = sorted(numbers.items(), key=lambda item: item[1][1])
        newest = dict(latest[-most:])
        if age is not None:
            newest = {job: pair for job, pair in newest.items() if pair[2] >= seconds - age or not pair[2]}
        removed = {_digest(job) for job in numbers if job not in newest}
        return AppliedWrites(newest, version, self.forgotten | removed, self.limits)

    def _read_older(self, table: TableRef, newest: int, floor: int) -> None:
        """Read versions before the newest one, newest first, until a record is complete up to its version."""
        older = [file for file in reversed(list_versions(table)) if floor < file.version < newest]
        begin = floor
        present = {file.version for file in older}
        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            for start in range(0, len(older), _READ_AT_ONCE):
                group = older[start : start + _READ_AT_ONCE]
                for manifest in pool.map(lambda file: read_whole(table.store, file.path, file.naming), group):
                    if manifest is None:
                        continue
                    if manifest.version <= floor:
                        return
                    self._find_hidden_versions(table, manifest, present, begin)
                    try:
                        floor = self._merge(AppliedWrites.parse(manifest), floor)
                    except FormatError as error:
                        # A later version deleted this damaged record; read the transactions instead.
                        logger.warning("%s", error)
                    if manifest.version > floor:
                        self._add_transaction(table, manifest)

    def _find_hidden_versions(
        self, table: TableRef, manifest: Manifest, present: set[int], begin: int
    ) -> None:
        """Set `hidden` if another engine restored a version, and versions since then were cleaned up."""
        if not begin:
            return  # There was no record before.
        missing = [v for v in range(begin + 1, manifest.version) if v not in present]
        if not missing:
            return
        try:
            restores = read_transaction(table, manifest).name == "restore"
        except FormatError:
            return
        if restores and (removed := [v for v in missing if not is_set_aside(table, v)]):
            self.hidden = (
                f"version {removed[0]}" if len(removed) == 1 else f"versions {removed[0]} to {removed[-1]}"
            )

    def _add_transaction(self, table: TableRef, manifest: Manifest) -> None:
        try:
            transaction = read_transaction(table, manifest)
        except FormatError as error:
            # A commit with an idempotent write has its transaction in the manifest, so this commit had none.
            logger.info("version %d of %s is taken to hold no pair: %s", manifest.version, table.root, error)
            return
        for write_id in read_idempotent_writes(transaction.properties):
            pair = (write_id.number, manifest.version, manifest.message.timestamp.seconds)
            self._merge(AppliedWrites({write_id.key: pair}), 0)

    def _merge(self, other: AppliedWrites, floor: int) -> int:
        for job, pair in other.numbers.items():
            self.numbers[job] = max(self.numbers.get(job, pair), pair)
        self.forgotten |= other.forgotten
        return max(floor, other.through)


def has_damaged_record(manifest: Manifest) -> bool:
    """Return whether the record of a version is damaged and must be deleted."""
    try:
        AppliedWrites.parse(manifest)
    except FormatError:
        return True
    except OptionError:
        return False  # The limits are invalid; the record may be readable.
    return False


def _parse_limits(manifest: Manifest) -> tuple[int, float | None]:
    """Return the limits of the record from the table's config.

    Raises:
        OptionError: a limit is invalid.
    """
    text, age = manifest.config.get(MAX_JOBS, str(_DEFAULT_MAX_JOBS)), manifest.config.get(MAX_AGE)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise OptionError(f"config {MAX_JOBS} of the table is {text[:40]!r}, not a number from 1 on")
    try:
        return int(text), None if age is None else parse_duration(age).total_seconds()
    except OptionError as error:
        raise OptionError(f"config {MAX_AGE} of the table: {error}") from None


def _parse_entry(entry: list[int]) -> tuple[int, int, int]:
    """Return a job's entry in the record; the time is 0 if the record has none."""
    number, version, *rest = entry
    return int(number), int(version), int(rest[0]) if rest else 0


def _digest(job: str) -> bytes:
    return hashlib.blake2b(job.encode(), digest_size=_DIGEST_BYTES).digest()


def _parse_digests(text: str) -> set[bytes]:
    data = base64.b64decode(text, validate=True)
    if len(data) % _DIGEST_BYTES:
        raise ValueError("digests of another length")
    return {data[start : start + _DIGEST_BYTES] for start in range(0, len(data), _DIGEST_BYTES)}


def carry_record(latest: Manifest, number: int) -> dict[str, str]:
    """Return the config entry with the record for version `number`, built on `latest` without a new write.

    The result is empty if `latest` has no record. A record that is not complete up to `latest` is not
    completed: the next commit that needs the record completes it, or handles its damage.
    """
    if APPLIED_WRITES not in latest.config:
        return {}
    try:
        record = AppliedWrites.parse(latest)
    except (FormatError, OptionError):
        return {}
    if record.through == latest.version:
        record.through = number
    return {APPLIED_WRITES: record.text()}
