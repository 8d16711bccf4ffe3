"""The codes of vectors: their layout in bytes, and plain twins of what the kernels compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.errors import FormatError, OptionError
from spark_lance.index.vector.base.ivf import Ivf, pack_tensor, unpack_tensor
from spark_lance.index.vector.base.metrics import Metric, distances, exact_distances
from spark_lance.index.vector.quantizers import base
from spark_lance.index.vector.quantizers.base import Codes, Quantizer
from spark_lance.index.vector.quantizers.flat import Flat
from spark_lance.index.vector.quantizers.product import ProductQuantizer
from spark_lance.index.vector.quantizers.rabit import (
    FastRotation,
    MatrixRotation,
    RabitQuantizer,
    extra_bytes,
    pack_extra,
    pack_signs,
    unpack_extra,
    unpack_signs,
)
from spark_lance.index.vector.quantizers.scalar import ScalarQuantizer
from tests.index.vectors import clustered

METRICS: tuple[Metric, ...] = ("l2", "cosine", "dot")


def test_sign_codes_lie_as_the_format_says() -> None:
    rows = np.arange(33, dtype=np.uint8).reshape(33, 1)
    stored = "0088119922aa33bb44cc55dd66ee77ff" + "10" * 16 + "20"
    assert pack_signs(rows).tobytes().hex() == stored


def test_extra_codes_lie_as_the_format_says() -> None:
    values = (np.arange(64) % 16).astype(np.uint8)[None]
    assert pack_extra(values, 4).tobytes().hex() == "8091a2b3c4d5e6f7" * 4


@given(st.integers(0, 100), st.integers(1, 20), st.integers(0, 2**32))
def test_sign_codes_come_back(rows: int, length: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 256, (rows, length)).astype(np.uint8)
    assert np.array_equal(unpack_signs(pack_signs(codes)), codes)


@given(st.integers(0, 20), st.integers(1, 20), st.integers(1, 8), st.integers(0, 2**32))
def test_extra_codes_come_back(rows: int, eighths: int, width: int, seed: int) -> None:
    dim = 8 * eighths
    codes = np.random.default_rng(seed).integers(0, 1 << width, (rows, dim)).astype(np.uint8)
    stored = pack_extra(codes, width)
    assert stored.shape == (rows, extra_bytes(dim, width))
    assert np.array_equal(unpack_extra(stored, dim, width), codes)


@pytest.mark.parametrize(
    ("signs", "rotated"),
    [
        ([1, 2, 4, 8], [-1.25, 2.25, -2.75, 0.75, 4.75, 6.25, 10.25, 4.75]),
        (
            [1, 0, 2, 1, 4, 2, 8, 4],
            [20.85427, 0.03726, -3.52791, -3.79116, 2.32919, 4.24188, -10.85427, 5.96274, 2.20639, 1.69389,
             1.18068, -1.53607],
        ),
    ],
)  # fmt: skip
def test_rotations_are_those_of_the_format(signs: list[int], rotated: list[float]) -> None:
    dim = len(rotated)
    given = np.arange(1, dim + 1, dtype=np.float32)[None]
    assert np.allclose(FastRotation(dim, bytes(signs))(given)[0], rotated, atol=2e-5)


@pytest.mark.parametrize("dim", [8, 16, 24, 96, 128])
def test_rotations_keep_lengths_and_products(dim: int) -> None:
    vectors = clustered(20, dim)
    for rotation in (FastRotation.random(dim), MatrixRotation.random(dim)):
        turned = rotation(vectors)
        assert np.allclose(turned @ turned.T, vectors @ vectors.T, rtol=1e-4, atol=1e-3)


def plain_product_codes(quantizer: ProductQuantizer, vectors: Any) -> list[list[int]]:
    parts, words, width = quantizer.codebook.shape
    codes = []
    for vector in vectors.astype(np.float64):
        row = []
        for j in range(parts):
            part = vector[j * width : (j + 1) * width]
            apart = [float(((part - quantizer.codebook[j][word]) ** 2).sum()) for word in range(words)]
            row.append(apart.index(min(apart)))
        codes.append(row)
    return codes


@pytest.mark.parametrize("metric", METRICS)
def test_product_codes_name_the_nearest_codewords(metric: Metric) -> None:
    vectors = clustered(300, 12)
    ivf = Ivf.train(vectors, 3, metric)
    owners = ivf.assign(vectors)
    rest = vectors if metric == "dot" else vectors - ivf.centroids[owners]
    quantizer = ProductQuantizer.train(rest, 4, 4, metric)
    codes = quantizer.encode(vectors, owners, ivf)["__pq_code"]
    halves = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
    plain = plain_product_codes(quantizer, rest[:40])
    assert sum(list(a) != b for a, b in zip(halves[:40].tolist(), plain, strict=True)) == 0


def test_scalar_codes_are_cut_off_not_rounded() -> None:
    quantizer = ScalarQuantizer(3, -1.0, 1.0, "l2")
    codes = quantizer.encode(np.array([[-2, -1, 0], [0.999, 1, 3]]), np.zeros(2, np.int64), IVF)
    assert codes["__sq_code"].tolist() == [[0, 0, 127], [254, 255, 255]]
    flat = ScalarQuantizer(2, 1.0, 1.0, "l2").encode(np.ones((1, 2)), np.zeros(1, np.int64), IVF)
    assert flat["__sq_code"].tolist() == [[0, 0]]


IVF = Ivf(np.zeros((1, 3), np.float32), "l2")


def quantizers(metric: Metric, vectors: Any, ivf: Ivf) -> list[Quantizer]:
    rest = vectors if metric == "dot" else vectors - ivf.centroids[ivf.assign(vectors)]
    dim = vectors.shape[1]
    return [
        Flat(dim, np.dtype(np.float32), metric),
        ProductQuantizer.train(rest, dim // 2, 8, metric),
        ScalarQuantizer.train(vectors, metric),
        RabitQuantizer.train(dim, 9, metric),
        RabitQuantizer.train(dim, 5, metric, "matrix"),
        RabitQuantizer.train(dim, 1, metric),
    ]


def close(metric: Metric, quantizer: Quantizer) -> float:
    """Return how far an estimate may be off on average, as a share of the spread of the distances."""
    if isinstance(quantizer, RabitQuantizer):
        return {9: 0.02, 5: 0.08, 1: 0.8}[quantizer.bits]
    return 1e-5 if quantizer.name == "FLAT" else 0.12


@pytest.mark.parametrize("metric", METRICS)
def test_estimates_are_near_the_distances(metric: Metric) -> None:
    raw, queries = clustered(1000, 32), clustered(8, 32, seed=1)
    exact = distances(queries, raw, metric)
    ivf = Ivf.train(Ivf(raw, metric).prepared(raw), 1, metric)
    vectors, request = ivf.prepared(raw), ivf.prepared(queries)
    owners = ivf.assign(vectors)
    for quantizer in quantizers(metric, vectors, ivf):
        codes = quantizer.encode(vectors, owners, ivf)
        packed = quantizer.pack(codes)
        assert_same(quantizer.unpack(packed), codes)
        scorer = quantizer.scorer(packed)
        one = quantizer.prepare(quantizer.queries(request), ivf.centroids[0])
        result = scorer.distances(one)
        if metric == "cosine" and quantizer.name != "FLAT":
            result /= 2
        off = float(np.abs(result - exact).mean() / exact.std())
        assert off <= close(metric, quantizer), (quantizer.name, off)
        some = np.array([5, 7])
        alone = quantizer.prepare(quantizer.queries(request[:1]), ivf.centroids[0])
        assert np.allclose(
            scorer.select_distances(alone, some), scorer.distances(alone)[0][some], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("metric", METRICS)
def test_one_query_of_several_partitions(metric: Metric) -> None:
    raw, queries = clustered(600, 32), clustered(3, 32, seed=1)
    ivf = Ivf.train(Ivf(raw, metric).prepared(raw), 4, metric)
    vectors, request = ivf.prepared(raw), ivf.prepared(queries)
    owners = ivf.assign(vectors)
    for quantizer in quantizers(metric, vectors, ivf):
        numbers = np.array([2, 0, 3])
        for number in range(len(request)):
            one = quantizer.queries(request)[number : number + 1]
            each = quantizer.prepare_each(one, ivf.centroids[numbers])
            assert len(each) == len(numbers)
            for place, together in zip(numbers, each, strict=True):
                mine = owners == place
                scorer = quantizer.scorer(quantizer.pack(quantizer.encode(vectors[mine], owners[mine], ivf)))
                expected = scorer.distances(quantizer.prepare(one, ivf.centroids[place]))[0]
                result = np.empty(len(expected), np.float32)
                scorer.estimate(together, result)
                assert np.allclose(result, expected, rtol=1e-4, atol=1e-3), quantizer.name
                exact = scorer.select_distances(together, np.arange(len(result)))
                off = np.abs(result - exact).max(initial=0)
                assert off <= (scorer.rounding(together) if scorer.direct else 1e-3), quantizer.name


@pytest.mark.parametrize("size", [1, 99, 100, 101, 250])
def test_a_large_partition_is_compared_in_parts(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(base, "_ONE_THREAD", 100 * 32)
    points = clustered(size, 32)
    lengths = np.arange(size, dtype=np.float32)
    request = base.PreparedQuery(clustered(1, 32, seed=3), np.ones(1, np.float32))
    scorer = base.Scorer(points, lengths, -2.0)
    expected = -2 * (points @ request.points[0]) + lengths + 1
    for most in (0, 1 << 23):
        monkeypatch.setattr(base, "_MAX_ONE_THREAD", most)
        result = np.full(size, np.nan, np.float32)
        scorer.estimate(request, result)
        assert np.allclose(result, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("afar", [False, True])
@pytest.mark.parametrize("dim", [8, 64, 128, 258, 259, 300])
def test_estimates_of_rows_in_memory(dim: int, afar: bool) -> None:
    """They are as exact as those of rows in the caches; those of small codes add up without rounding."""
    vectors, queries = clustered(150, dim), clustered(2, dim, seed=1)
    ivf = Ivf.train(vectors, 1, "l2")
    owners = np.zeros(len(vectors), np.int64)
    for quantizer in (
        quantizers("l2", vectors, ivf) if dim % 8 == 0 else [ScalarQuantizer.train(vectors, "l2")]
    ):
        codes = quantizer.encode(vectors, owners, ivf)
        scorer = quantizer.scorer(quantizer.pack(codes))
        for number in range(len(queries)):
            request = quantizer.prepare(quantizer.queries(queries)[number : number + 1], ivf.centroids[0])
            result, near = np.empty(len(vectors), np.float32), np.empty(len(vectors), np.float32)
            scorer.estimate(request, result, afar=afar)
            scorer.estimate(request, near)
            exact = scorer.select_distances(request, np.arange(len(result)))
            allowed = scorer.rounding(request) if scorer.direct else 1e-2
            assert np.abs(result - exact).max() <= allowed, quantizer.name
            assert scorer.direct or np.array_equal(result, near), quantizer.name


def test_whole_numbers_are_those_that_add_up() -> None:
    wide, narrow = (
        ScalarQuantizer(dim, 0.0, 1.0, "l2").scorer({"__sq_code": np.full((1, dim), 255, np.uint8)})
        for dim in (259, 258)
    )
    assert narrow.whole
    assert not wide.whole


def assert_same(one: Codes, other: Codes) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert np.array_equal(one[name], other[name])


@pytest.mark.parametrize("metric", METRICS)
def test_distances_are_those_of_a_plain_loop(metric: Metric) -> None:
    vectors, queries = clustered(30, 5), clustered(3, 5, seed=2)
    result = distances(queries, vectors, metric)
    for i, query in enumerate(queries.astype(np.float64)):
        assert np.allclose(exact_distances(queries[i], vectors, metric), result[i], atol=1e-5)
        for j, vector in enumerate(vectors.astype(np.float64)):
            assert abs(result[i, j] - plain_distance(query, vector, metric)) < 1e-4


def plain_distance(one: Any, other: Any, metric: Metric) -> float:
    if metric == "l2":
        return float(sum((a - b) ** 2 for a, b in zip(one, other, strict=True)))
    product = sum(a * b for a, b in zip(one, other, strict=True))
    if metric == "dot":
        return float(1 - product)
    return float(1 - product / (sum(a * a for a in one) * sum(b * b for b in other)) ** 0.5)


def test_hamming_counts_bits() -> None:
    one = np.array([[0b1010, 255]], dtype=np.uint8)
    other = np.array([[0b0110, 0], [0b1010, 255]], dtype=np.uint8)
    assert distances(one, other, "hamming").tolist() == [[10, 0]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint8])
def test_tensors_come_back(dtype: npt.DTypeLike) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype)
    back = unpack_tensor(pack_tensor(array))
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_damaged_tensors_are_refused() -> None:
    message = pack_tensor(np.zeros((2, 3), np.float32))
    message.shape[0] = 5
    with pytest.raises(FormatError):
        unpack_tensor(message)


def test_impossible_parameters_are_refused() -> None:
    with pytest.raises(OptionError, match="divisible"):
        ProductQuantizer.train(np.zeros((10, 10), np.float32), 3, 8, "l2")
    with pytest.raises(OptionError, match="multiple of 8"):
        RabitQuantizer.train(12, 5, "l2")
    with pytest.raises(OptionError, match="bits"):
        RabitQuantizer.train(16, 10, "l2")
