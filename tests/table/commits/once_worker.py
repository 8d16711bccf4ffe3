"""One of several processes that try to commit the same pairs; run by `test_idempotent_writes.py`.

    python once_worker.py PATH PAIRS ROWS

It says when it is ready, begins when told, and prints how many of the pairs it was the one to commit.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from spark_lance.errors import AlreadyCommittedError
from spark_lance.io.store import open_store
from spark_lance.table.commits.idempotent_writes import IdempotentWrite
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.inserts.write_plan import commit_write, find_latest, plan_write
from spark_lance.table.writing.write import write_fragments


def main() -> None:
    path, pairs, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    store, root = open_store(path)
    table = TableRef(store, root)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    won = 0
    for number in range(pairs):
        data = pa.record_batch({"pair": pa.array([number] * rows, pa.int64())})
        plan = plan_write(TableRef(store, root), find_latest(table), data.schema, "append")
        fragments = write_fragments([data], table, plan.schema, version=plan.version)
        try:
            commit_write(table, plan, fragments, write_id=IdempotentWrite("job", number))
            won += 1
        except AlreadyCommittedError:
            pass
    sys.stdout.write(f"{won}\n")


if __name__ == "__main__":
    main()
