"""Sharding: the assignment of rows to shards by the sharding spec of the table's MemWAL.

    bucket       (hash of a column & 0x7fffffff) % num_buckets; null is bucket 0
    identity     the value of a column
    unsharded    one shard for all rows

The hash is Spark SQL's `hash` with seed 0: Murmur3, but the bytes after the last complete 4-byte word are
mixed one by one, as signed numbers.

    mix(h, k)     k * cc9e2d51, rotated left by 15, * 1b873593; xor into h; h rotated by 13, * 5 + e6546b64
    end(h, n)     h ^ n, then Murmur3's finish
    32 bits       end(mix(0, v), 4)                booleans, integers to 32 bits, dates, float32 by their bits
    64 bits       end(mix(mix(0, low), high), 8)   integers of 64 bits, timestamps, float64 by their bits
    text          end(words and bytes, length)

Examples: int64 34 hashes to 2017239379; of 8 buckets the int32 1 is in 2, the text "a" in 1.

The manifest of a shard records its value (`shard_field_entries`: raw little-endian bytes, or UTF-8). The id
of a new shard is derived from the value, so that two writers create the same shard. (MemWAL, sharding.)
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import one_array, pick_rows
from spark_lance.arrow.murmur3 import UInt32Array, hash32, hash64, hash_bytes, mix
from spark_lance.errors import OptionError, SchemaError, UnsupportedFormatError
from spark_lance.file.base.schema import Schema
from spark_lance.memwal.names import ShardPaths, list_shards
from spark_lance.memwal.shard_manifest import create_shard, load_shard
from spark_lance.proto.index_pb2 import MemWalIndexDetails, ShardingSpec, ShardManifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.schema.keys import primary_key

MAX_BUCKETS = 1024
# pylance uses this name for every transform.
_FIELD = "bucket"
_NAMESPACE = uuid.UUID("6f0c1f4e-8e0b-4f39-9f0a-4d2a6c1b7e55")
_TYPES = {"string": "utf8", "large_string": "large_utf8", "bool": "bool"}


def hashes(values: pa.Array, seed: int = 0) -> UInt32Array:
    """Return Spark's hash of every value, as uint32; undefined for nulls.

    Raises:
        SchemaError: the type cannot be hashed.
    """
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return hash_bytes(values.cast(pa.large_string()).fill_null(""), seed, _mix_signed_bytes)
    check_hashable(kind)
    if pa.types.is_boolean(kind):
        return hash32(values.fill_null(False).cast(pa.uint8()).to_numpy().astype(np.uint32), seed)
    if pa.types.is_floating(kind):
        numbers = values.fill_null(0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 hashes as 0.0
        numbers[np.isnan(numbers)] = np.nan
        if kind.bit_width == 32:
            return hash32(numbers.astype(np.float32).view(np.uint32), seed)
        return hash64(numbers.astype(np.float64).view(np.uint64), seed)
    if not pa.types.is_integer(kind):
        values = values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    if numbers.dtype.itemsize == 8:
        return hash64(numbers.view(np.uint64), seed)
    return hash32(numbers.astype(np.int64).astype(np.uint32), seed)


def check_hashable(kind: pa.DataType) -> None:
    """Check that values of a type can be put into buckets.

    Raises:
        SchemaError: they cannot.
    """
    tests = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_float32, pa.types.is_float64,
             pa.types.is_date32, pa.types.is_time, pa.types.is_timestamp, pa.types.is_string,
             pa.types.is_large_string)  # fmt: skip
    if not any(test(kind) for test in tests):
        raise SchemaError(f"bucket_column cannot be of type {kind}: choose another column")


def buckets(values: pa.Array, count: int) -> npt.NDArray[np.int32]:
    """Return the bucket of every value, 0 for nulls."""
    result = (hashes(values) & np.uint32(0x7FFFFFFF)).astype(np.int64) % count
    result[values.is_null().to_numpy(zero_copy_only=False)] = 0
    bucket_numbers: npt.NDArray[np.int32] = result.astype(np.int32)
    return bucket_numbers


def _mix_signed_bytes(state: UInt32Array, tail: npt.NDArray[np.uint8]) -> UInt32Array:
    """Return the hash states after the last bytes of texts: each byte is mixed as a signed word."""
    for place in range(tail.shape[1]):
        state = mix(state, tail[:, place].view(np.int8).astype(np.int32).view(np.uint32))
    return state


def sharding_spec(
    schema: Schema,
    *,
    bucket_column: str | None = None,
    num_buckets: int | None = None,
    identity_column: str | None = None,
    unsharded: bool = False,
) -> tuple[ShardingSpec | None, int]:
    """Return the sharding spec for some options, None without any, and the number of shards, 0 if unknown.

    Raises:
        OptionError: several options exclude each other, or an option is incomplete.
        SchemaError: the column does not exist or its type cannot be used.
    """
    if (bucket_column is None) != (num_buckets is None):
        raise OptionError("bucket_column and num_buckets must be set together")
    choices = [bucket_column is not None, identity_column is not None, unsharded]
    if sum(choices) > 1:
        raise OptionError("set only one of bucket_column, identity_column and unsharded")
    if not any(choices):
        return None, 0
    spec = ShardingSpec(spec_id=1)
    field = spec.fields.add(field_id=_FIELD, result_type="int32")
    if unsharded:
        field.transform = "unsharded"
        return spec, 1
    column = schema.field(str(bucket_column if bucket_column is not None else identity_column))
    field.source_ids.append(column.id)
    if num_buckets is None:
        kind = column.arrow_type()
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
                or pa.types.is_boolean(kind)):  # fmt: skip
            raise SchemaError(
                f"identity_column {column.name!r} must be of integers, text or booleans, not {kind}"
            )
        field.transform = "identity"
        field.result_type = _TYPES.get(str(kind), str(kind))
        return spec, 0
    if not 1 <= num_buckets <= MAX_BUCKETS:
        raise OptionError(f"num_buckets must be 1 to {MAX_BUCKETS}, not {num_buckets}")
    check_hashable(column.arrow_type())
    field.transform = "bucket"
    field.parameters["num_buckets"] = str(num_buckets)
    return spec, num_buckets


@dataclass(frozen=True)
class Router:
    """Determines the shard of every row. Can be pickled.

    Attributes:
        spec_id: the id of the sharding spec.
        transform: "bucket", "identity" or "unsharded".
        column: the column that determines the shard; empty for "unsharded".
        num_buckets: the number of buckets for "bucket".
    """

    spec_id: int
    transform: str
    column: str = ""
    num_buckets: int = 1

    @classmethod
    def of(cls, details: MemWalIndexDetails, schema: Schema) -> Router:
        """Return the router of a table's MemWAL.

        Raises:
            OptionError: its shards are chosen by users, or the sharding column is not in the primary key.
            UnsupportedFormatError: the sharding spec is not supported.
        """
        if not details.sharding_specs:
            raise OptionError(
                "the MemWAL does not assign rows to shards: use mem_wal_writer(shard_id), or initialize "
                "it with bucket_column and num_buckets, identity_column or unsharded=True"
            )
        spec = details.sharding_specs[0]
        if len(details.sharding_specs) > 1 or len(spec.fields) != 1:
            raise UnsupportedFormatError("a MemWAL with several sharding specs or fields")
        field = spec.fields[0]
        if field.transform == "unsharded":
            return cls(spec.spec_id, "unsharded")
        if field.transform not in ("bucket", "identity") or field.HasField("expression"):
            raise UnsupportedFormatError(f"a MemWAL sharded by {field.transform or field.expression}")
        name = field.parameters.get("column", "").strip()
        if not name:
            names = [top.name for top in schema.fields if top.id in field.source_ids]
            if len(names) != 1:
                raise SchemaError(
                    "the table no longer has the column by which the MemWAL shards rows: add it again"
                )
            name = names[0]
        key = [part.name for part in primary_key(schema)]
        if key and name not in key:
            raise OptionError(
                f"the MemWAL shards rows by column {name!r}, which is not in the primary key, so a key could "
                "be in two shards: write with mem_wal_writer(shard_id)"
            )
        if field.transform == "identity":
            return cls(spec.spec_id, "identity", name)
        return cls(spec.spec_id, "bucket", name, int(field.parameters.get("num_buckets", "1")))

    def values(self, rows: pa.Table) -> pa.Array:
        """Return the value that determines the shard of each row.

        Raises:
            SchemaError: the rows lack the column, or it has nulls with the transform "identity".
        """
        if self.transform == "unsharded":
            return pa.array(np.zeros(rows.num_rows, np.int32))
        if self.column not in rows.column_names:
            raise SchemaError(
                f"the rows lack column {self.column!r}, by which the MemWAL shards them: add it"
            )
        column = one_array(rows[self.column]) if rows.num_rows else rows[self.column].combine_chunks()
        if self.transform == "bucket":
            return pa.array(buckets(column, self.num_buckets))
        if column.null_count:
            raise SchemaError(
                f"column {self.column!r} has a null, but the MemWAL shards rows by it: replace the null"
            )
        return column

    def split(self, rows: pa.Table) -> Iterator[tuple[bytes, pa.Table]]:
        """Yield (value of a shard as in its manifest, rows of the shard in order)."""
        if not rows.num_rows:
            return
        values = self.values(rows)
        encoded = values.dictionary_encode()
        if len(encoded.dictionary) == 1:
            yield value_bytes(encoded.dictionary[0]), rows
            return
        codes = encoded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary))).tolist()
        sorted_rows = pick_rows(rows, order)
        for value, start, end in zip(encoded.dictionary, [0, *ends], ends, strict=False):
            yield value_bytes(value), sorted_rows.slice(start, end - start)

    def shards(self, table: TableRef) -> dict[bytes, uuid.UUID]:
        """Return value -> shard for the shards with a value in their manifest; the first of several wins."""
        result: dict[bytes, uuid.UUID] = {}
        for shard in list_shards(table):
            manifest = load_shard(ShardPaths(table, shard))
            if manifest is None or manifest.status == ShardManifest.SEALED:
                continue
            entries = {entry.field_id: entry.value for entry in manifest.shard_field_entries}
            if _FIELD in entries and manifest.shard_spec_id == self.spec_id:
                result.setdefault(entries[_FIELD], shard)
        return result

    def shard_for(
        self, table: TableRef, value: bytes, shards: Mapping[bytes, uuid.UUID] | None = None
    ) -> uuid.UUID:
        """Return the shard of a value; create the shard if it does not exist.

        Args:
            table: the table.
            value: the value as in shard manifests.
            shards: the result of `shards`; read again if None.
        """
        present = self.shards(table) if shards is None else shards
        if value in present:
            return present[value]
        shard = uuid.uuid5(_NAMESPACE, f"{self.spec_id}/{self.transform}/{self.num_buckets}/{value.hex()}")
        create_shard(ShardPaths(table, shard), self.spec_id, {_FIELD: value})
        return shard


def value_bytes(value: pa.Scalar) -> bytes:
    """Return the bytes of a value in shard manifests: little-endian, or UTF-8."""
    kind = value.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return str(value.as_py()).encode()
    if pa.types.is_boolean(kind):
        return bytes([bool(value.as_py())])
    width = kind.bit_width // 8
    return int(value.as_py()).to_bytes(width, "little", signed=not pa.types.is_unsigned_integer(kind))
