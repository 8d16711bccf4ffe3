"""One of several processes that change one table at once; run by `test_race.py`.

    python race_worker.py ours|pylance PATH NUMBER COMMITS

The environment variable RACE_STORAGE_OPTIONS holds the storage options, as JSON.

It owns the rows whose `owner` is its number, changes them at random, and now and then adds one to the row
that all share. It says when it is ready, begins when told, and in the end prints what must have come of it.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from spark_lance.errors import RetriesExhaustedError, RetryableConflictError

# What says that an operation was not committed and may be tried again; pylance says so in words.
CONFLICTS = (RetryableConflictError, RetriesExhaustedError)
SCHEMA = pa.schema({"key": pa.int64(), "owner": pa.int64(), "value": pa.int64()})
SPAN = 1_000_000
TRIES = 60


class Lost(logging.Handler):
    """Counts the attempts to commit that other writers won."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.msg.startswith("attempt")


class Worker:
    """A writer of either kind, and the rows that it must have in the end."""

    def __init__(self, who: str, path: str, number: int) -> None:
        self.path = path
        self.options = json.loads(os.environ.get("RACE_STORAGE_OPTIONS", "null"))
        self.number = number
        self.random = random.Random(number)
        self.rows = {number * SPAN + i: 0 for i in range(8)}
        self.next_key = number * SPAN + len(self.rows)
        self.done: dict[str, int] = {}
        self.gave_way = 0
        module: Any = importlib.import_module("spark_lance" if who == "ours" else "lance")
        self.module = module
        self.dataset = self.newest()
        self.lost = Lost()
        logger = logging.getLogger("spark_lance.table.commits.commit")
        logger.addHandler(self.lost)
        logger.setLevel(logging.INFO)

    def table(self, rows: dict[int, int]) -> pa.Table:
        columns = [list(rows), [self.number] * len(rows), list(rows.values())]
        return pa.table([pa.array(column, pa.int64()) for column in columns], schema=SCHEMA)

    def newest(self) -> Any:
        return self.module.dataset(self.path, storage_options=self.options)

    def write(self, rows: dict[int, int]) -> None:
        data = self.table(rows)
        self.module.write_dataset(data, self.path, mode="append", storage_options=self.options)

    def append(self) -> None:
        rows = {self.next_key + i: i for i in range(3)}
        self.next_key += 3
        self.retry(lambda: self.write(rows))
        self.know(rows)

    def know(self, rows: dict[int, int]) -> None:
        """Later changes must find these rows in the version that they begin with; other rows may be old."""
        self.rows.update(rows)
        self.dataset = self.newest()

    def delete(self) -> None:
        key = self.random.choice([*self.rows])
        self.retry(lambda: self.dataset.delete(f"key = {key}"))
        del self.rows[key]

    def update(self) -> None:
        key = self.random.choice([*self.rows])
        self.retry(lambda: self.dataset.update({"value": "value + 10"}, where=f"key = {key}"))
        self.rows[key] += 10

    def upsert(self) -> None:
        changed = {self.random.choice([*self.rows]): 5, self.next_key: 6}
        self.next_key += 1

        def run() -> None:
            merge = self.dataset.merge_insert("key")
            merge.when_matched_update_all().when_not_matched_insert_all().execute(self.table(changed))

        self.retry(run)
        self.know(changed)

    def count(self) -> None:
        self.retry(lambda: self.dataset.update({"value": "value + 1"}, where="key = -1"))

    def compact(self) -> None:
        try:
            self.newest().optimize.compact_files(target_rows_per_fragment=1000)
        except (OSError, *CONFLICTS) as error:
            if not self.is_conflict(error):
                raise
            self.gave_way += 1

    def retry(self, run: Callable[[], object]) -> None:
        for _ in range(TRIES):
            try:
                run()
            except (OSError, *CONFLICTS) as error:
                if not self.is_conflict(error):
                    raise
                self.gave_way += 1
                self.dataset = self.newest()
            else:
                return
        raise RuntimeError(f"{TRIES} conflicts in a row")

    def is_conflict(self, error: Exception) -> bool:
        text = str(error)
        return isinstance(error, CONFLICTS) or "conflict" in text.lower()

    def work(self, commits: int) -> None:
        kinds = ["append", "delete", "update", "upsert", "count", "compact"]
        for _ in range(commits):
            (kind,) = self.random.choices(kinds, [8, 4, 4, 2, 3, 1])
            if kind in ("delete", "update", "upsert") and len(self.rows) < 2:
                kind = "append"
            getattr(self, kind)()
            self.done[kind] = self.done.get(kind, 0) + 1
            if self.random.random() < 0.5:
                self.dataset = self.newest()

    def report(self) -> str:
        facts = {"rows": self.rows, "done": self.done, "lost": self.lost.count, "gave_way": self.gave_way}
        return json.dumps(facts)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run one worker."""
    who, path, number, commits = sys.argv[1:]
    worker = Worker(who, path, int(number))
    say("ready")
    sys.stdin.readline()
    worker.work(int(commits))
    say(worker.report())


if __name__ == "__main__":
    main()
