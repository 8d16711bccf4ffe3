"""QUANTIZERS: the quantizer classes by their names in index types."""

from __future__ import annotations

from collections.abc import Mapping

from spark_lance.index.vector.quantizers.base import Quantizer
from spark_lance.index.vector.quantizers.flat import Flat
from spark_lance.index.vector.quantizers.product import ProductQuantizer
from spark_lance.index.vector.quantizers.rabit import RabitQuantizer
from spark_lance.index.vector.quantizers.scalar import ScalarQuantizer

QUANTIZERS: Mapping[str, type[Quantizer]] = {
    "FLAT": Flat,
    "PQ": ProductQuantizer,
    "SQ": ScalarQuantizer,
    "RQ": RabitQuantizer,
}
