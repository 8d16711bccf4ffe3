"""Codewords of a vector index, with methods to save and load them."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from spark_lance.compat.lance.indices.ivf import load_model, save_model

__all__ = ["PqModel"]


class PqModel:
    """The codewords of a vector index.

    Attributes:
        num_subvectors: the number of parts of a vector. Each part has its own codewords.
        codebook: the values in the order [part][codeword][value], in lists as long as a vector.
        num_bits: the number of bits of a code.
    """

    def __init__(self, num_subvectors: int, codebook: pa.FixedSizeListArray, *, num_bits: int = 8) -> None:
        self.num_subvectors = num_subvectors
        self.codebook = codebook
        self.num_bits = num_bits

    @property
    def dimension(self) -> int:
        """The dimension of the vectors."""
        size: int = self.codebook.type.list_size
        return size

    def save(self, uri: str, *, storage_options: Mapping[str, str] | None = None) -> None:
        """Write the model to a file."""
        notes = {"num_subvectors": str(self.num_subvectors), "num_bits": str(self.num_bits)}
        save_model(uri, "codebook", self.codebook, notes, storage_options)

    @classmethod
    def load(cls, uri: str, *, storage_options: Mapping[str, str] | None = None) -> PqModel:
        """Return the model from a file."""
        codebook, notes = load_model(uri, "codebook", storage_options)
        return cls(int(notes["num_subvectors"]), codebook, num_bits=int(notes.get("num_bits", "8")))
