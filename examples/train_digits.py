"""Train a small model on handwritten digits from a table, with a check after every step.

    python examples/train_digits.py [--dir FOLDER]

The table has the digits as vectors. Each epoch reads them in another order. Training stops in an epoch and
resumes from the stored position. Then an epoch of 40 times as many rows is timed, and the same epoch from
Parquet. The model uses numpy and needs no package for training: `spark_lance.training.torch` returns the same
batches as tensors. Needs scikit-learn; runs in seconds. The tables are in FOLDER, by default a temporary
folder.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_digits

import spark_lance
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.training.batches import Batches, Position

EPOCHS = 8
# Rows that lie together until they are mixed, and how many of such pieces are mixed at a time.
PIECE, BUFFER = 2048, 16


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
        result, place = [], Position()
        for table, position in batches.epoch(epoch):
            result.append(model.step(*arrays(table)))
            place = position
            if epoch == 2 and len(result) == 10:
                break
        if epoch == 2:
            result += [model.step(*arrays(table)) for table, _ in batches.epoch(epoch, start=place)]
        confirm(f"batches of epoch {epoch}", len(result), len(result) == -(-len(ds) // 64))
        losses.append(float(np.mean(result)))
        print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    pixels, labels = arrays(ds.to_table().combine_chunks())
    right = float((model.scores(pixels).argmax(axis=1) == labels).mean())
    confirm("digits told right", f"{right:.1%}", right > 0.93)
    return losses


def from_parquet(path: Path, epoch: int) -> Iterator[pa.Table]:
    """Yield batches of a Parquet file: row groups in random order, and rows mixed as `Batches` does it."""
    file, chance = pq.ParquetFile(path, memory_map=True), np.random.default_rng(epoch)
    groups = chance.permutation(file.num_row_groups).tolist()
    remainder = None
    for start in range(0, len(groups), BUFFER):
        rows = file.read_row_groups(groups[start : start + BUFFER])
        rows = rows.take(pa.array(chance.permutation(rows.num_rows)))
        rows = rows if remainder is None else pa.concat_tables([remainder, rows])
        rows = rows.combine_chunks()
        whole = rows.num_rows - rows.num_rows % 64
        yield from (rows.slice(first, 64) for first in range(0, whole, 64))
        remainder = rows.slice(whole)
    if remainder is not None and remainder.num_rows:
        yield remainder


def beside_parquet(ds: LanceDataset, folder: Path) -> None:
    """Print the processor time of an epoch of training from a table, and from Parquet with the same rows.

    Neither is compressed, because every epoch reads everything.
    """
    rows = pa.concat_tables([ds.to_table()] * 40)
    many = spark_lance.write_dataset(rows, str(folder / "many.lance"), compression="none")
    pq.write_table(rows, folder / "many.parquet", row_group_size=PIECE, compression="none")
    batches = Batches(many, batch_size=64, shuffle=True, piece_rows=PIECE, buffer_pieces=BUFFER)

    def seconds(tables: Iterable[pa.Table]) -> float:
        model, began = Softmax(), time.process_time()
        losses = [(model.step(*arrays(table)), len(table)) for table in tables]
        duration = time.process_time() - began
        assert sum(count for _, count in losses) == len(rows)
        return duration

    # Alternate, and take the minimum of each: other runs include other work of the machine.
    turns = [
        (
            seconds(table for table, _ in batches.epoch(epoch)),
            seconds(from_parquet(folder / "many.parquet", epoch)),
        )
        for epoch in range(4)
    ]
    ours, theirs = (min(times) * 1000 for times in zip(*turns, strict=True))
    print(f"an epoch of {len(rows):,} rows: {ours:.0f} ms of processor time, from Parquet {theirs:.0f}")


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
    beside_parquet(ds, folder)
    print("All checks passed.")


if __name__ == "__main__":
    main()
