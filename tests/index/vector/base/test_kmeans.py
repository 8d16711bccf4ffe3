"""K-means against a plain loop, and its edge cases."""

from __future__ import annotations

import numpy as np

from spark_lance.index.vector.base.kmeans import PreparedCentroids, assign, nearest, train_kmeans
from tests.index.vectors import clustered


def test_rows_go_to_their_nearest_centroid() -> None:
    rows, centroids = clustered(500, 7), clustered(20, 7, seed=3)
    owners, scores = assign(rows, centroids)
    plain = ((rows[:, None].astype(np.float64) - centroids[None]) ** 2).sum(axis=2)
    assert np.array_equal(owners, plain.argmin(axis=1))
    assert np.allclose(scores, plain.min(axis=1), rtol=1e-3, atol=1e-4)
    by_product, products = assign(rows, centroids, spherical=True)
    assert np.array_equal(by_product, (rows @ centroids.T).argmax(axis=1))
    assert np.allclose(products, -(rows @ centroids.T).max(axis=1), rtol=1e-4)


def test_nearest_centroids_come_in_order() -> None:
    rows, centroids = clustered(50, 7), clustered(20, 7, seed=3)
    plain = ((rows[:, None] - centroids[None]) ** 2).sum(axis=2)
    assert np.array_equal(nearest(rows, PreparedCentroids.of(centroids), 6), np.argsort(plain, axis=1)[:, :6])
    assert nearest(rows, PreparedCentroids.of(centroids), 99).shape == (50, 20)


def test_every_cluster_has_rows_and_the_loss_is_small() -> None:
    rows = clustered(4000, 8, clusters=16) * np.float32(0.1) + clustered(16, 8, seed=9)[
        np.arange(4000) % 16
    ] * np.float32(5)
    centroids = train_kmeans(rows, 16)
    owners, scores = assign(rows, centroids)
    assert np.bincount(owners, minlength=16).min() > 0
    assert scores.mean() < 0.5 * ((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()


def test_fewer_rows_than_clusters() -> None:
    rows = clustered(3, 4)
    centroids = train_kmeans(rows, 8)
    assert centroids.shape == (8, 4)
    assert np.isfinite(centroids).all()
    assert assign(rows, centroids)[1].max() < 1e-2


def test_spherical_centroids_have_length_one() -> None:
    centroids = train_kmeans(clustered(1000, 6), 5, spherical=True)
    assert np.allclose(np.linalg.norm(centroids, axis=1), 1, atol=1e-5)


def test_the_same_seed_gives_the_same_centroids() -> None:
    rows = clustered(1000, 6)
    assert np.array_equal(train_kmeans(rows, 5, seed=1), train_kmeans(rows, 5, seed=1))
