"""Product codes, compared by tables or decoded: both sides of each bound, beside plain sums in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from spark_lance.index.vector.base.ivf import Ivf
from spark_lance.index.vector.base.metrics import Metric
from spark_lance.index.vector.quantizers import product, quantized_points
from spark_lance.index.vector.quantizers.base import PreparedQuery, Scorer, estimate_each
from spark_lance.index.vector.quantizers.product import Codebook, ProductCodes, ProductQuantizer
from spark_lance.index.vector.quantizers.quantized_points import NarrowCodes, QuantizedPoints
from tests.index.vectors import clustered

Matrix = npt.NDArray[Any]


def codewords(bits: int, sub_vectors: int = 6, values: int = 4, dtype: Any = np.float32) -> Matrix:
    random = np.random.default_rng(bits)
    return random.normal(size=(sub_vectors, 1 << bits, values)).astype(dtype)


def some_codes(rows: int, bits: int, sub_vectors: int = 6, seed: int = 0) -> npt.NDArray[np.uint8]:
    columns = sub_vectors * bits // 8
    return np.random.default_rng(seed).integers(0, 256, (columns, rows)).astype(np.uint8)


def plain_points(codes: npt.NDArray[np.uint8], words: Matrix, bits: int) -> Matrix:
    """Return what codes (columns, n) stand for, number by number, in float64."""
    rows = []
    for row in codes.T.tolist():
        numbers = row if bits == 8 else [half for byte in row for half in (byte & 15, byte >> 4)]
        rows.append(np.concatenate([words[j][number] for j, number in enumerate(numbers)]))
    return np.array(rows, dtype=np.float64).reshape(len(rows), -1)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ways in which products were found, with bounds that small partitions reach."""
    taken: list[str] = []

    def seen(owner: Any, name: str, label: str) -> None:
        work = getattr(owner, name)

        def noted(*args: Any) -> Any:
            taken.append(label)
            return work(*args)

        monkeypatch.setattr(owner, name, noted)

    seen(product, "_look_up_arrow", "arrow")
    seen(product, "_look_up_numpy", "numpy")
    seen(product, "_sum_lookups_batch", "several")
    seen(product, "_grouped_products", "together")
    seen(QuantizedPoints, "products", "decoded")
    monkeypatch.setattr(product, "_MAX_TABLE_QUERIES", 2)
    monkeypatch.setattr(product, "_MIN_TABLE_ROWS", 10)
    monkeypatch.setattr(product, "_MIN_ARROW_ROWS", 30)
    monkeypatch.setattr(product, "_BLOCK_SUMS", 64)
    monkeypatch.setattr(product, "_SMALL_ROWS", 40)
    monkeypatch.setattr(product, "_MAX_GROUPED", 3)
    monkeypatch.setattr(quantized_points, "_TILE_VALUES", 24 * 7)
    monkeypatch.setattr(quantized_points, "_SHARED_TILE_VALUES", 24 * 8)
    return taken


@pytest.mark.parametrize(
    ("bits", "rows", "queries", "expected"),
    [
        (8, 1, 1, ["decoded"]),
        (8, 9, 1, ["decoded"]),
        (8, 9, 8, ["decoded"]),
        (8, 10, 1, ["numpy"]),
        (8, 29, 1, ["numpy"]),
        (8, 30, 1, ["arrow"]),
        (8, 64, 1, ["arrow"]),
        (8, 65, 1, ["arrow", "numpy"]),
        (8, 94, 1, ["arrow", "arrow"]),
        (8, 10, 2, ["several", "numpy"]),
        (8, 33, 2, ["several", "numpy", "numpy"]),
        (8, 20, 3, ["several", "numpy", "numpy"]),
        (8, 16, 8, ["several", "numpy", "numpy"]),
        (8, 10, 9, ["decoded"]),
        (8, 100, 9, ["decoded"]),
        (4, 10, 9, ["several", "numpy", "numpy", "numpy"]),
        (4, 10, 11, ["several", "numpy", "numpy", "several", "numpy"]),
        (4, 10, 16, ["several", "numpy", "numpy"] * 2),
        (4, 10, 17, ["decoded"]),
    ],
)
def test_products(ways: list[str], bits: int, rows: int, queries: int, expected: list[str]) -> None:
    words, codes = codewords(bits), some_codes(rows, bits)
    points = ProductCodes(codes, Codebook.of(words, bits))
    request = clustered(queries, 24)
    result = np.full((queries, rows), np.nan, np.float32)
    points.products(request, result)
    assert ways == expected
    plain = plain_points(codes, words, bits)
    assert np.allclose(result, request.astype(np.float64) @ plain.T, rtol=1e-5, atol=1e-4)
    assert np.array_equal(points.floats(), plain.astype(np.float32))
    assert np.array_equal(points[np.array([rows - 1, 0])], plain[[-1, 0]].astype(np.float32))
    assert np.allclose(points.squares(), (plain**2).sum(axis=1), rtol=1e-5)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    ("counts", "together"),
    [
        ([5], 0),
        ([5, 6], 1),
        ([39, 25], 1),
        ([39, 26], 0),
        ([40, 5, 6], 1),
        ([5, 6, 40], 1),
        ([5, 40, 6], 0),
        ([1, 2, 3], 1),
        ([1, 2, 3, 4, 5], 2),
        ([70, 80], 0),
    ],
)
@pytest.mark.parametrize("alike", [False, True])
def test_one_query_in_partitions(
    ways: list[str], bits: int, counts: list[int], together: int, alike: bool
) -> None:
    words = codewords(bits)
    book = Codebook.of(words, bits)
    parts = [ProductCodes(some_codes(count, bits, seed=count), book) for count in counts]
    requests = [clustered(1, 24, seed=0 if alike else number) for number in range(len(parts))]
    if alike:
        requests = [requests[0]] * len(parts)
    result = np.full(sum(counts), np.nan, np.float32)
    ProductCodes.products_of_each(parts, requests, result)
    assert ways.count("together") == together
    expected = [plain_points(p.codes, words, bits) @ q[0] for p, q in zip(parts, requests, strict=True)]
    assert np.allclose(result, np.concatenate(expected), rtol=1e-5, atol=1e-4)


def test_all_partitions_that_go_together_have_room_in_the_codes() -> None:
    book = Codebook.of(codewords(8), 8)
    parts = [ProductCodes(some_codes(2, 8, seed=number), book) for number in range(300)]
    requests = [clustered(1, 24, seed=number) for number in range(300)]
    result = np.empty(600, np.float32)
    ProductCodes.products_of_each(parts, requests, result)
    expected = [points.floats() @ query[0] for points, query in zip(parts, requests, strict=True)]
    assert np.allclose(result, np.concatenate(expected), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [1000, 1 << 12, 3 << 12, (1 << 16) + 5])
@pytest.mark.parametrize("queries", [1, 5, 32, 33])
def test_products_with_the_bounds_as_they_are(rows: int, queries: int) -> None:
    points = ProductCodes(some_codes(rows, 8), Codebook.of(codewords(8), 8))
    request = clustered(queries, 24)
    result = np.empty((queries, rows), np.float32)
    points.products(request, result)
    assert np.allclose(result, request @ points.floats().T, rtol=1e-5, atol=1e-4)


def test_equal_codes_have_equal_distances() -> None:
    """Wherever rows lie, so that ties are told by their ids."""
    book = Codebook.of(codewords(8), 8)
    codes = np.repeat(some_codes(1, 8), (1 << 16) + 7777, axis=1)
    query = clustered(1, 24)
    result = np.empty((3, codes.shape[1]), np.float32)
    ProductCodes(codes, book).products(query, result[:1])
    ProductCodes.products_of_each(
        [ProductCodes(part, book) for part in np.array_split(codes, 40, axis=1)], [query] * 40, result[1]
    )
    assert len(np.unique(result[:2])) == 1


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_scorers_of_stored_codes(metric: Metric, bits: int, transposed: bool, dtype: Any) -> None:
    words = codewords(bits, dtype=dtype)
    quantizer = ProductQuantizer(words, bits, metric, transposed)
    codes = some_codes(50, bits)
    stored = quantizer.pack({"__pq_code": np.ascontiguousarray(codes.T)})
    scorer = quantizer.scorer(stored)
    assert scorer.nbytes == codes.nbytes + 4 * 50
    assert not np.shares_memory(scorer.points.codes, stored["__pq_code"])  # type: ignore[union-attr]
    ivf = Ivf(clustered(1, 24, seed=5), metric)
    queries = quantizer.queries(ivf.prepared(clustered(3, 24, seed=6)))
    request = quantizer.prepare(queries, ivf.centroids[0])
    points = plain_points(codes, words, bits)
    seen = queries.vectors.astype(np.float64) - (0 if metric == "dot" else ivf.centroids)
    products = seen @ points.T
    plain = 1 - products if metric == "dot" else ((seen[:, None] - points[None]) ** 2).sum(axis=2)
    assert np.allclose(scorer.distances(request), plain, rtol=1e-4, atol=1e-3)
    assert np.allclose(scorer.decoded().distances(request), plain, rtol=1e-4, atol=1e-3)
    assert np.allclose(scorer.part(slice(7, 20)).distances(request), plain[:, 7:20], rtol=1e-4, atol=1e-3)
    assert np.array_equal(quantizer.comparable(quantizer.unpack(stored)), points.astype(np.float32))


def test_too_few_columns_of_codes() -> None:
    quantizer = ProductQuantizer(codewords(8), 8, "l2")
    with pytest.raises(IndexError, match="5 bytes for 6 columns"):
        quantizer.scorer({"__pq_code": np.zeros((3, 5), np.uint8)})


@pytest.mark.parametrize("center", [0.0, 0.5, 15.5, 255.5])
@pytest.mark.parametrize("rows", [1, 6, 7, 8, 50])
def test_narrow_codes(monkeypatch: pytest.MonkeyPatch, center: float, rows: int) -> None:
    monkeypatch.setattr(quantized_points, "_TILE_VALUES", 24 * 7)
    monkeypatch.setattr(quantized_points, "_SHARED_TILE_VALUES", 24 * 8)
    kind: type[np.unsignedinteger[Any]] = np.uint16 if center > 128 else np.uint8
    codes = np.random.default_rng(0).integers(0, int(2 * center + 1) or 256, (rows, 24)).astype(kind)
    plain = codes.astype(np.float64) - center
    points = NarrowCodes(codes, center)
    assert np.array_equal(points.floats(), plain)
    assert np.array_equal(points.part(slice(2, 30)).floats(), plain[2:30])
    assert np.array_equal(points[np.array([0, rows - 1])], plain[[0, -1]])
    assert np.allclose(points.squares(), (plain**2).sum(axis=1), rtol=1e-6)
    for queries in (1, 3):
        request = clustered(queries, 24)
        result = np.empty((queries, rows), np.float32)
        points.products(request, result)
        assert np.allclose(result, request @ plain.T, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("decoded", [[], [0, 1, 2], [1]])
def test_estimates_of_several_partitions(decoded: list[int]) -> None:
    words = codewords(8)
    book = Codebook.of(words, 8)
    parts = [ProductCodes(some_codes(count, 8, seed=count), book) for count in (4, 2000, 30)]
    scorers = [Scorer(points, points.squares(), -2.0) for points in parts]
    scorers = [scorer.decoded() if i in decoded else scorer for i, scorer in enumerate(scorers)]
    requests = [PreparedQuery(clustered(1, 24, seed=i), np.full(1, i, np.float32)) for i in range(3)]
    result = np.empty(2034, np.float32)
    estimate_each(list(zip(scorers, requests, strict=True)), result)
    expected = [scorer.distances(one)[0] for scorer, one in zip(scorers, requests, strict=True)]
    assert np.allclose(result, np.concatenate(expected), rtol=1e-4, atol=1e-3)
