"""Train a small model on handwritten digits from a table, with a check after every step.

    python examples/train_digits.py [--dir FOLDER]

The table has the digits as vectors. Each epoch reads them in another order; training is stopped in an epoch
and goes on from the position that was kept. The model is numpy, so that no package for training is needed:
`spark_lance.training.torch` gives the same batches as tensors. Needs scikit-learn; runs in seconds. FOLDER
takes the table, a temporary one by default.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from sklearn.datasets import load_digits

import spark_lance
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.training.batches import Batches, Position

EPOCHS = 8


def write_digits(path: str) -> LanceDataset:
    """Write the digits: a vector of 64 numbers and a label each."""
    data = load_digits()
    pixels = (data.data / 16).astype(np.float32)
    rows = pa.table(
        {
            "pixels": pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), 64),
            "label": pa.array(data.target, pa.int64()),
        }
    )
    return spark_lance.write_dataset(rows, path, max_rows_per_file=500)


class Softmax:
    """One layer with softmax, trained by gradient descent."""

    def __init__(self) -> None:
        self.weights = np.zeros((64, 10), np.float32)
        self.bias = np.zeros(10, np.float32)

    def scores(self, pixels: np.ndarray) -> np.ndarray:
        """Return how likely each digit is."""
        raw = pixels @ self.weights + self.bias
        raw = np.exp(raw - raw.max(axis=1, keepdims=True))
        scores: np.ndarray = raw / raw.sum(axis=1, keepdims=True)
        return scores

    def step(self, pixels: np.ndarray, labels: np.ndarray, rate: float = 0.5) -> float:
        """Learn from a batch and return its loss."""
        scores = self.scores(pixels)
        rows = np.arange(len(labels))
        loss = float(-np.log(scores[rows, labels] + 1e-9).mean())
        scores[rows, labels] -= 1
        self.weights -= rate * pixels.T @ scores / len(labels)
        self.bias -= rate * scores.mean(axis=0)
        return loss


def arrays(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch as numpy arrays that share memory with it."""
    pixels = table["pixels"].chunk(0).flatten().to_numpy().reshape(-1, 64)
    return pixels, table["label"].to_numpy()


def train(ds: LanceDataset) -> list[float]:
    """Return the mean loss of each epoch; the third is stopped and goes on from where it was."""
    batches = Batches(ds, batch_size=64, shuffle=True, seed=7, piece_rows=100, buffer_pieces=4)
    model, losses = Softmax(), []
    for epoch in range(EPOCHS):
        found, place = [], Position()
        for table, position in batches.epoch(epoch):
            found.append(model.step(*arrays(table)))
            place = position
            if epoch == 2 and len(found) == 10:
                break
        if epoch == 2:
            found += [model.step(*arrays(table)) for table, _ in batches.epoch(epoch, start=place)]
        confirm(f"batches of epoch {epoch}", len(found), len(found) == -(-len(ds) // 64))
        losses.append(float(np.mean(found)))
        print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    pixels, labels = arrays(ds.to_table().combine_chunks())
    right = float((model.scores(pixels).argmax(axis=1) == labels).mean())
    confirm("digits told right", f"{right:.1%}", right > 0.93)
    return losses


def confirm(what: str, value: object, holds: bool) -> None:
    """Print a value, and stop if it is not as it should be."""
    print(f"{'ok    ' if holds else 'FAILED'} {what}: {value}")
    if not holds:
        raise SystemExit(1)


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path)
    folder = parser.parse_args().dir or Path(tempfile.mkdtemp())
    ds = write_digits(str(folder / "digits.lance"))
    losses = train(ds)
    confirm("the loss falls", [round(loss, 2) for loss in losses], losses[-1] < 0.5 * losses[0])
    print("All checks passed.")


if __name__ == "__main__":
    main()
