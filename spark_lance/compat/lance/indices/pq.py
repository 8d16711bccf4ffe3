"""Codewords of a vector index, as a value that files can store."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from spark_lance.compat.lance.indices.ivf import load_model, save_model

__all__ = ["PqModel"]


class PqModel:
    """Codewords.

    Attributes:
        num_subvectors: parts of a vector that have codewords of their own.
        codebook: their values in the order [part][codeword][value], in lists as long as a vector.
        num_bits: of a code.
    """

    def __init__(self, num_subvectors: int, codebook: pa.FixedSizeListArray, *, num_bits: int = 8) -> None:
        self.num_subvectors = num_subvectors
        self.codebook = codebook
        self.num_bits = num_bits

    @property
    def dimension(self) -> int:
        """The length of the vectors."""
        size: int = self.codebook.type.list_size
        return size

    def save(self, uri: str, *, storage_options: Mapping[str, str] | None = None) -> None:
        """Write it as a file."""
        notes = {"num_subvectors": str(self.num_subvectors), "num_bits": str(self.num_bits)}
        save_model(uri, "codebook", self.codebook, notes, storage_options)

    @classmethod
    def load(cls, uri: str, *, storage_options: Mapping[str, str] | None = None) -> PqModel:
        """Read it from a file."""
        codebook, notes = load_model(uri, "codebook", storage_options)
        return cls(int(notes["num_subvectors"]), codebook, num_bits=int(notes.get("num_bits", "8")))
