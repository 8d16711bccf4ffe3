"""The steps of building a vector index, one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from spark_lance.compat.lance.file import LanceFileReader
from spark_lance.compat.lance.indices.ivf import IvfModel
from spark_lance.compat.lance.indices.pq import PqModel
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import ColumnNotFoundError, OptionError, OptionTypeError
from spark_lance.file.base.version import DEFAULT_VERSION
from spark_lance.index.base.columns import leaf_field
from spark_lance.index.base.entries import check_name, commit_segments, index_directory, new_segment
from spark_lance.index.base.files import IndexFileWriter
from spark_lance.index.vector.base.ivf import Ivf
from spark_lance.index.vector.base.metrics import metric_named
from spark_lance.index.vector.build import (
    IndexParams,
    TrainedModel,
    merge_segments,
    prepare_sample,
    vector_type,
)
from spark_lance.index.vector.create import build_entry, configure_recipe, sample_vectors, segment_rows
from spark_lance.index.vector.quantizers.product import ProductQuantizer
from spark_lance.index.vector.storage import Partition
from spark_lance.io.locations import join
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2

__all__ = ["IndicesBuilder"]

_PARTITION, _ROW_ID, _CODE = "__ivf_part_id", "_rowid", "__pq_code"


class IndicesBuilder:
    """Builds a vector index of a column in separate steps: train, encode, sort and commit.

    Args:
        dataset: the dataset.
        column: the vector column.
    """

    def __init__(self, dataset: Any, column: str | Sequence[str]) -> None:
        names = [column] if isinstance(column, str) else list(column)
        self.dataset = dataset
        self.column = names
        try:
            kind = leaf_field(self._value.snapshot.schema, names[0]).arrow_type()
        except ColumnNotFoundError:
            raise KeyError(f"{names[0]} not found in schema") from None
        is_bytes = pa.types.is_fixed_size_list(kind) and kind.value_type == pa.uint8()
        self.dimension, self._dtype = vector_type(kind, "hamming" if is_bytes else "l2")

    @property
    def _value(self) -> LanceDataset:
        value: LanceDataset = self.dataset.value
        return value

    def train_ivf(
        self,
        num_partitions: int | None = None,
        *,
        distance_type: str = "l2",
        accelerator: Any = None,
        sample_rate: int = 256,
        max_iters: int = 50,
        fragment_ids: list[int] | None = None,
    ) -> IvfModel:
        """Train centroids. Their default number is the square root of the number of rows.

        Raises:
            OptionError: an argument is invalid, or the table has too few rows.
        """
        if accelerator is not None:
            raise OptionError("training is done by the processor: leave accelerator out")
        fragments, rows = self._rows(fragment_ids)
        if num_partitions is None:
            num_partitions = round(math.sqrt(rows))
        _check_sample(sample_rate, int(num_partitions), rows)
        recipe = self._recipe(distance_type, int(num_partitions), sample_rate, max_iters)
        sample = sample_vectors(
            self._value.snapshot, self.column[0], sample_rate * int(num_partitions), fragments
        )
        ivf = Ivf.train(
            prepare_sample(sample, recipe.metric), int(num_partitions), recipe.metric, iterations=max_iters
        )
        return IvfModel(self._lists(ivf.centroids, self.dimension), distance_type.lower())

    def train_pq(
        self,
        ivf_model: IvfModel,
        num_subvectors: int | None = None,
        *,
        sample_rate: int = 256,
        max_iters: int = 50,
        num_bits: int = 8,
        fragment_ids: list[int] | None = None,
    ) -> PqModel:
        """Train codewords of the differences between vectors and their centroids.

        Raises:
            OptionError: an argument is invalid, or the table has too few rows.
        """
        fragments, rows = self._rows(fragment_ids)
        parts = self._parts(num_subvectors)
        _check_sample(sample_rate, 1 << num_bits, rows)
        recipe = self._recipe(ivf_model.distance_type, None, sample_rate, max_iters)
        sample = prepare_sample(
            sample_vectors(self._value.snapshot, self.column[0], sample_rate << num_bits, fragments),
            recipe.metric,
        )
        recipe = configure_recipe(
            "IVF_PQ",
            recipe.metric,
            None,
            parts,
            num_bits,
            {"sample_rate": sample_rate, "max_iters": max_iters},
        )
        quantizer = ProductQuantizer.fit(sample, self._ivf(ivf_model), recipe, self._dtype)
        return PqModel(parts, self._lists(quantizer.codebook, self.dimension), num_bits=num_bits)

    def prepare_global_ivf_pq(
        self,
        num_partitions: int | None = None,
        num_subvectors: int | None = None,
        *,
        distance_type: str = "l2",
        num_bits: int = 8,
        **options: Any,
    ) -> dict[str, pa.Array]:
        """Return `ivf_centroids` and `pq_codebook` for builds that each index a part of the table."""
        ivf = self.train_ivf(num_partitions, distance_type=distance_type, **options)
        options.pop("accelerator", None)
        pq = self.train_pq(ivf, num_subvectors, num_bits=num_bits, **options)
        return {"ivf_centroids": ivf.centroids, "pq_codebook": pq.codebook}

    def transform_vectors(
        self,
        ivf: IvfModel,
        pq: PqModel,
        dest_uri: str,
        fragments: list[Any] | None = None,
        partition_ds_uri: str | None = None,
    ) -> None:
        """Write a file of row ids, partitions and codes.

        Raises:
            OptionError: `fragments` is empty, or `partition_ds_uri` is set.
        """
        if fragments is not None and not fragments:
            raise OptionError("fragments must be a non-empty list or None")
        if partition_ds_uri is not None:
            raise OptionError("partitions are computed here: leave partition_ds_uri out")
        snapshot = self._value.snapshot
        fragment_ids = (
            snapshot.fragments
            if fragments is None
            else self._rows([each.fragment_id for each in fragments])[0]
        )
        model, quantizer = self._ivf(ivf), self._quantizer(ivf, pq)
        width = quantizer.columns()[0].type
        schema = pa.schema([(_ROW_ID, pa.uint64()), (_PARTITION, pa.uint32()), (_CODE, width)])
        with _writer(dest_uri, schema) as writer:
            for ids, vectors in segment_rows(snapshot, self.column[0], fragment_ids):
                prepared = model.prepared(vectors)
                owners = model.assign(prepared)
                codes = quantizer.encode(prepared, owners, model)[_CODE]
                flat = pa.array(np.ascontiguousarray(codes).reshape(-1))
                columns = [
                    pa.array(ids),
                    pa.array(owners.astype(np.uint32)),
                    pa.FixedSizeListArray.from_arrays(flat, type=width),
                ]
                writer.write(columns)
            writer.finish({})

    def shuffle_transformed_vectors(
        self,
        unsorted_filenames: list[str],
        dir_path: str,
        ivf: IvfModel,
        shuffle_output_root_filename: str | None = "sorted",
    ) -> list[str]:
        """Sort the rows of each file by partition, and return the names of the new files."""
        if not isinstance(unsorted_filenames, list):
            raise OptionTypeError("filenames must be a list of strings")
        names = []
        for number, name in enumerate(unsorted_filenames):
            rows = LanceFileReader(join(dir_path, name)).read_all().to_table()
            rows = rows.sort_by([(_PARTITION, "ascending"), (_ROW_ID, "ascending")])
            names.append(f"{shuffle_output_root_filename or 'sorted'}_{number}.lance")
            with _writer(join(dir_path, names[-1]), rows.schema) as writer:
                writer.write([column.combine_chunks() for column in rows.columns])
                writer.finish({})
        return names

    def load_shuffled_vectors(
        self,
        filenames: list[str],
        dir_path: str,
        ivf: IvfModel,
        pq: PqModel,
        index_name: str | None = None,
    ) -> None:
        """Commit an index from files sorted by partition, and move the dataset to the new version."""
        if not isinstance(filenames, list):
            raise OptionTypeError("filenames must be a list of strings")
        value = self._value
        snapshot = value.snapshot
        field = leaf_field(snapshot.schema, self.column[0])
        name = index_name or f"{self.column[0]}_idx"
        check_name(snapshot.manifest, name, field.id, replace=True)
        recipe = self._recipe(ivf.distance_type, None, 256, 50)
        trained = TrainedModel(recipe, self._ivf(ivf), self._quantizer(ivf, pq), self._dtype)
        store, folder = open_store(dir_path)
        parts = [
            _partitions(LanceFileReader(store.uri(join(folder, file))), len(trained.ivf))
            for file in filenames
        ]
        with new_segment(snapshot.table) as segment:
            directory = index_directory(snapshot.root, segment)
            files = merge_segments(trained, snapshot.store, directory, parts, snapshot.manifest.file_version)
        covered = BitMap(fragment.id for fragment in snapshot.fragments)
        entry = build_entry(trained, name, segment, field.id, snapshot.version, covered, files)
        removed = [old for old in snapshot.manifest.indices if old.name == name]
        self.dataset.value = value.at(commit_segments(snapshot, [entry], removed))

    def _rows(self, fragment_ids: Iterable[int] | None) -> tuple[list[table_pb2.DataFragment], int]:
        snapshot = self._value.snapshot
        if fragment_ids is None:
            return list(snapshot.fragments), snapshot.live_rows()
        fragments = [self._value.get_fragment(number) for number in fragment_ids]
        for number, fragment in zip(fragment_ids, fragments, strict=True):
            if fragment is None:
                raise OptionError(f"Fragment id does not exist: {number}")
        existing = [fragment for fragment in fragments if fragment is not None]
        return [fragment.message for fragment in existing], sum(each.count_rows() for each in existing)

    def _recipe(self, metric: str, partitions: int | None, sample_rate: int, iterations: int) -> IndexParams:
        options = {"sample_rate": sample_rate, "max_iters": iterations}
        return configure_recipe("IVF_PQ", metric_named(metric.lower()), partitions, None, None, options)

    def _parts(self, count: int | None) -> int:
        if count is None:
            fitting = next((n for n in (16, 8) if self.dimension % n == 0), None)
            if fitting is None:
                raise OptionError(
                    f"vectors of {self.dimension} values cannot be cut into parts of 16 or 8: "
                    "say num_subvectors"
                )
            return self.dimension // fitting
        if count < 1 or self.dimension % count:
            raise OptionError(
                f"dimension ({self.dimension}) must be divisible by num_subvectors ({count}) "
                "without remainder"
            )
        return count

    def _lists(self, values: Any, length: int) -> pa.FixedSizeListArray:
        flat = np.ascontiguousarray(values).reshape(-1).astype(self._dtype)
        return pa.FixedSizeListArray.from_arrays(pa.array(flat), length)

    def _ivf(self, model: IvfModel) -> Ivf:
        flat = model.centroids.flatten().to_numpy(zero_copy_only=False)
        kind = np.float64 if flat.dtype == np.float64 else np.float32
        matrix = flat.reshape(len(model.centroids), -1)
        metric = metric_named(model.distance_type)
        return Ivf(matrix if metric == "hamming" else matrix.astype(kind), metric)

    def _quantizer(self, ivf: IvfModel, pq: PqModel) -> ProductQuantizer:
        flat = pq.codebook.flatten().to_numpy(zero_copy_only=False)
        book = flat.reshape(pq.num_subvectors, 1 << pq.num_bits, -1).astype(self._dtype)
        return ProductQuantizer.from_codebook(
            book, pq.num_bits, metric_named(ivf.distance_type), self.dimension
        )


def _writer(uri: str, schema: pa.Schema) -> IndexFileWriter:
    """Return a writer that accepts the column `_rowid`, which tables reserve."""
    return IndexFileWriter(*open_store(uri), schema, DEFAULT_VERSION)


def _partitions(reader: LanceFileReader, count: int) -> Iterator[Partition]:
    """Yield the partitions of a file that is sorted by partition."""
    rows = reader.read_all().to_table()
    owners = rows[_PARTITION].to_numpy()
    ids = rows[_ROW_ID].to_numpy()
    codes = rows[_CODE].combine_chunks()
    matrix = codes.flatten().to_numpy(zero_copy_only=False).reshape(len(codes), -1)
    bounds = np.searchsorted(owners, np.arange(count + 1))
    for number in range(count):
        part = slice(bounds[number], bounds[number + 1])
        yield Partition(ids[part], {_CODE: matrix[part]})


def _check_sample(sample_rate: int, groups: int, rows: int) -> None:
    if sample_rate < 2:
        raise OptionError(f"The sample_rate must be an int greater than 1, got {sample_rate}")
    if groups * sample_rate > rows:
        raise OptionError(
            f"there are not enough rows to find {groups} centers with a sample rate of {sample_rate}: "
            f"{groups * sample_rate} rows are needed, and there are {rows}"
        )
