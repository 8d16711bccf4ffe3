"""Maintenance of a dataset. Each method moves the dataset to the new version."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.datasets.fragment_metadata import FragmentMetadata
from spark_lance.datasets.maintain import Compaction as _Compaction
from spark_lance.index.remap import SegmentRemap
from spark_lance.io.stored_json import parse_object
from spark_lance.proto import table_pb2
from spark_lance.table.maintenance import compact, compact_plan, compact_task
from spark_lance.table.maintenance.compact_task import CompactionMetrics

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "Compaction",
    "CompactionMetrics",
    "CompactionOptions",
    "CompactionPlan",
    "CompactionTask",
    "DatasetOptimizer",
    "RewriteResult",
]


class CompactionOptions(TypedDict, total=False):
    """Options of `compact_files` and of compaction plans, by name."""

    target_rows_per_fragment: int | None
    max_rows_per_group: int | None
    max_bytes_per_file: int | None
    materialize_deletions: bool | None
    materialize_deletions_threshold: float | None
    num_threads: int | None
    batch_size: int | None
    io_buffer_size: int | None
    compaction_mode: str | None
    binary_copy_read_batch_bytes: int | None
    defer_index_remap: bool | None
    max_source_fragments: int | None
    max_source_rows: int | None
    max_source_bytes: int | None
    excluded_fragment_ids: list[int] | None
    data_storage_version: str | None


@raises_os_errors
class DatasetOptimizer:
    """The methods of `LanceDataset.optimize`."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def compact_files(self, **options: Any) -> CompactionMetrics:
        """Rewrite small fragments into larger fragments."""
        arguments = {name: value for name, value in options.items() if value is not None}
        for hint in ("max_rows_per_group", "binary_copy_read_batch_bytes"):
            arguments.pop(hint, None)
        if arguments.get("compaction_mode") in ("reencode", "try_binary_copy"):
            arguments.pop("compaction_mode")
        metrics: CompactionMetrics = self._dataset.value.optimize.compact_files(**arguments)
        self._dataset.checkout_latest()
        return metrics

    def optimize_indices(self, **options: Any) -> None:
        """Add the rows that indexes do not cover yet to the indexes.

        `retrain=True` builds each index again from all rows, as one segment.
        """
        if options.get("retrain") or options.get("num_indices_to_merge") is None:
            options.pop("num_indices_to_merge", None)
        if options.get("retrain") is None:
            options.pop("retrain", None)
        self._dataset.value.optimize.optimize_indices(**options)
        self._dataset.checkout_latest()

    def enable_auto_cleanup(self, auto_cleanup_config: Mapping[str, int], **_: Any) -> None:
        """Enable automatic cleanup of old versions."""
        latest = self._dataset.value.checkout_latest()
        self._dataset.value = latest.settings.enable_auto_cleanup(auto_cleanup_config)

    def disable_auto_cleanup(self, **_: Any) -> None:
        """Disable automatic cleanup of old versions."""
        self._dataset.value = self._dataset.value.checkout_latest().settings.disable_auto_cleanup()


class _Json:
    """JSON text in pylance's form. The classes read pylance's text, and pylance reads theirs."""

    def json(self) -> str:
        """Return the values as JSON text."""
        return json.dumps(self._document(), separators=(",", ":"))

    @classmethod
    def from_json(cls, json: str) -> Self:
        """Parse JSON text.

        Raises:
            ValueError: the text is no JSON of this class.
        """
        try:
            return cls._parse(parse_object(json))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"Could not load {cls.__name__} due to error: {error}") from error

    def _document(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def _parse(cls, document: Mapping[str, Any]) -> Self:
        raise NotImplementedError


def _fragment_documents(fragments: Iterable[table_pb2.DataFragment]) -> list[dict[str, Any]]:
    documents = [FragmentMetadata.of(fragment).to_json() for fragment in fragments]
    return [{name: value for name, value in entry.items() if value is not None} for entry in documents]


def _fragment_bytes(documents: Iterable[Mapping[str, Any]]) -> tuple[bytes, ...]:
    fragments = [FragmentMetadata.from_json(document) for document in documents]
    return tuple(fragment.message().SerializeToString() for fragment in fragments)


# Keys of pylance's options, with its defaults, that `CompactionOptions` lacks or writes differently.
_PYLANCE_OPTIONS: dict[str, Any] = {
    "max_rows_per_group": 1024,
    "index_remap_mode": "Direct",
    "compaction_mode": None,
    "enable_binary_copy": False,
    "enable_binary_copy_force": False,
    "binary_copy_read_batch_bytes": 16 << 20,
    "max_overlays_per_fragment": 10,
    "has_eager_remappable_index": None,
}


def _options_document(options: compact_plan.CompactionOptions) -> dict[str, Any]:
    return {**dataclasses.asdict(options), **_PYLANCE_OPTIONS}


def _parse_options(document: Mapping[str, Any]) -> compact_plan.CompactionOptions:
    names = compact_plan.CompactionOptions.__dataclass_fields__.keys() - _PYLANCE_OPTIONS.keys()
    values = {name: value for name, value in document.items() if name in names and value is not None}
    return compact_plan.read_options({}, values)


@raises_os_errors
@dataclass(frozen=True)
class RewriteResult(_Json):
    """The output of a task. Can be pickled.

    Attributes:
        value: the result of this package.
    """

    value: compact_task.RewriteResult

    def __repr__(self) -> str:
        return (
            f"RewriteResult(read_version={self.read_version}, new_fragments={self.new_fragments}, "
            f"old_fragments={self.original_fragments})"
        )

    @property
    def read_version(self) -> int:
        """The version that was read."""
        return self.value.read_version

    @property
    def metrics(self) -> CompactionMetrics:
        """The metrics of this result."""
        return self.value.metrics

    @property
    def new_fragments(self) -> list[FragmentMetadata]:
        """The new fragments."""
        return [FragmentMetadata.of(message) for message in self.value.new_fragments]

    @property
    def original_fragments(self) -> list[FragmentMetadata]:
        """The fragments that were rewritten."""
        return [FragmentMetadata.of(message) for message in self.value.old_fragments]

    def _document(self) -> dict[str, Any]:
        metrics, addresses = self.metrics, self.value.old_addresses
        names = ("fragments_removed", "fragments_added", "files_removed", "files_added")
        document = {
            "metrics": {name: getattr(metrics, name) for name in names},
            "new_fragments": _fragment_documents(self.value.new_fragments),
            "read_version": self.read_version,
            "original_fragments": _fragment_documents(self.value.old_fragments),
            "row_addrs": list(addresses) if addresses else None,
        }
        return {**document, "deferred": True} if self.value.deferred else document

    @classmethod
    def _parse(cls, document: Mapping[str, Any]) -> RewriteResult:
        return cls(
            compact_task.RewriteResult(
                read_version=int(document["read_version"]),
                old=_fragment_bytes(document["original_fragments"]),
                new=_fragment_bytes(document["new_fragments"]),
                old_addresses=bytes(document.get("row_addrs") or b""),
                deferred=bool(document.get("deferred", False)),
            )
        )


@raises_os_errors
@dataclass(frozen=True)
class CompactionTask(_Json):
    """A group of fragments to rewrite. Can be pickled.

    Attributes:
        read_version: the version that is read.
        old: the serialized fragments to rewrite.
        options: the options of the compaction.
        value: the task of this package; None for a task from JSON, which `execute` plans again.
    """

    read_version: int
    old: tuple[bytes, ...]
    options: compact_plan.CompactionOptions
    value: compact_task.CompactionTask | None = None

    @classmethod
    def of(cls, task: compact_task.CompactionTask) -> CompactionTask:
        """Wrap a task of this package."""
        return cls(task.read_version, task.old, task.options, task)

    def __repr__(self) -> str:
        return f"CompactionTask(read_version={self.read_version}, fragments={self.fragments})"

    @property
    def _messages(self) -> list[table_pb2.DataFragment]:
        return [table_pb2.DataFragment.FromString(data) for data in self.old]

    @property
    def fragments(self) -> list[FragmentMetadata]:
        """The fragments to rewrite."""
        return [FragmentMetadata.of(message) for message in self._messages]

    def execute(self, dataset: Any) -> RewriteResult:
        """Write the new files and return the result for `Compaction.commit`.

        Raises:
            OptionError: the task is from JSON, and its version of the dataset has not these fragments.
        """
        task = self.value
        if task is None:
            snapshot = dataset.value.checkout_version(self.read_version).snapshot
            task = compact.plan_task(snapshot, self._messages, self.options, SegmentRemap())
        return RewriteResult(task.execute())

    def _document(self) -> dict[str, Any]:
        return {
            "task": {"fragments": _fragment_documents(self._messages)},
            "read_version": self.read_version,
            "options": _options_document(self.options),
        }

    @classmethod
    def _parse(cls, document: Mapping[str, Any]) -> CompactionTask:
        old = _fragment_bytes(document["task"]["fragments"])
        return cls(int(document["read_version"]), old, _parse_options(document["options"]))


@raises_os_errors
@dataclass(frozen=True)
class CompactionPlan(_Json):
    """The tasks of a compaction.

    Attributes:
        read_version: the version that the plan is based on.
        tasks: one per group of fragments; they can run in any order and on any machine.
        options: the options of the compaction.
    """

    read_version: int
    tasks: list[CompactionTask]
    options: compact_plan.CompactionOptions

    def __repr__(self) -> str:
        return (
            f"CompactionPlan(read_version={self.read_version}, tasks=<{self.num_tasks()} compaction tasks>)"
        )

    def num_tasks(self) -> int:
        """Return the number of tasks."""
        return len(self.tasks)

    def _document(self) -> dict[str, Any]:
        return {
            "tasks": [task._document()["task"] for task in self.tasks],
            "read_version": self.read_version,
            "options": _options_document(self.options),
        }

    @classmethod
    def _parse(cls, document: Mapping[str, Any]) -> CompactionPlan:
        version, options = int(document["read_version"]), _parse_options(document["options"])
        groups = [_fragment_bytes(task["fragments"]) for task in document["tasks"]]
        return cls(version, [CompactionTask(version, old, options) for old in groups], options)


@raises_os_errors
class Compaction:
    """Compaction in steps."""

    @staticmethod
    def plan(dataset: Any, options: Mapping[str, Any] | None = None) -> CompactionPlan:
        """Return the plan: the fragments to rewrite."""
        plan = _Compaction.plan(dataset.value, options)
        settings = compact_plan.read_options(dataset.value.manifest.config, options or {})
        return CompactionPlan(plan.read_version, [CompactionTask.of(task) for task in plan.tasks], settings)

    @staticmethod
    def commit(dataset: Any, rewrites: Any, options: Mapping[str, Any] | None = None) -> CompactionMetrics:
        """Commit the results of a plan, and move the dataset to the new version."""
        results = [getattr(result, "value", result) for result in rewrites]
        metrics = _Compaction.commit(dataset.value, results, options)
        dataset.checkout_latest()
        return metrics

    @staticmethod
    def execute(dataset: Any, options: Mapping[str, Any] | None = None) -> CompactionMetrics:
        """Plan, rewrite and commit, and move the dataset to the new version."""
        metrics = _Compaction.execute(dataset.value, options)
        dataset.checkout_latest()
        return metrics
