"""A batch of queries that is routed to places finds what the same queries find one by one."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from spark_lance import dataset, write_dataset
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.search import VectorSearch
from spark_lance.index.vector.search_tasks import Routing, plan_search, run_task
from spark_lance.index.vector.top_k import TopK
from tests.index.vectors import table_of

K, DIM = 7, 16


def made(path: Path, kind: str, indexed: int, rows: np.random.Generator) -> None:
    """Two segments, and fragments without one."""
    for number in range(4):
        vectors = rows.standard_normal((300, DIM), dtype=np.float32)
        write_dataset(table_of(vectors, 300 * number), path, "append" if number else "create")
        if number == 0 and indexed:
            dataset(path).create_index("v", kind, num_partitions=5)
        elif number < indexed:
            dataset(path).optimize.optimize_indices(num_indices_to_merge=0)


def same(one: list[TopK], other: list[TopK]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.addresses.tolist() == b.addresses.tolist()
        assert np.allclose(a.distances, b.distances, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("filter", [None, "id % 3 = 1"])
@pytest.mark.parametrize("indexed", [0, 2, 4])
@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_SQ"])
def test_shares_places_and_one_process_find_the_same(
    kind: str, indexed: int, filter: str | None, tmp_path: Path
) -> None:
    random = np.random.default_rng(indexed)
    made(tmp_path / "t", kind, indexed, random)
    ds = dataset(tmp_path / "t")
    vectors = random.standard_normal((20, DIM), dtype=np.float32)
    request = {"column": "v", "q": vectors.tolist(), "k": K, "nprobes": 5, "refine_factor": 4}
    query = VectorQuery.parse(request)
    plan = pickle.loads(pickle.dumps(plan_search(ds.snapshot, query, filter)))
    search = VectorSearch(ds.snapshot, "v")
    assert len(search.plan(query)) == len({bool(task.segments) for task in plan.tasks})
    addresses = ds.to_table([], filter=filter, with_row_address=True)["_rowaddr"].to_numpy()
    whole = search.run(query, None if filter is None else addresses)

    answers = [run_task(plan, task) for task in plan.tasks]
    same([TopK.best(parts, K) for parts in zip(*answers, strict=True)], whole)

    routing = Routing(plan)
    places = routing.places(vectors)
    parts: list[list[TopK]] = [[] for _ in vectors]
    for place in np.unique(places).tolist():
        (askers,) = np.nonzero((places == place).any(axis=1))
        for asker, part in zip(askers, routing.answer(place, vectors[askers]), strict=True):
            parts[asker].append(part)
    same([TopK.best(each, K) for each in parts], whole)
