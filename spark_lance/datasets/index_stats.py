"""Figures of the segments of an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_lance.errors import UnsupportedFormatError
from spark_lance.index.vector.kinds import VECTOR_LABEL, VECTOR_NEWEST
from spark_lance.late import late
from spark_lance.table.reading.snapshot import Snapshot

if TYPE_CHECKING:
    from spark_lance.index.entries import segments_of
    from spark_lance.index.scalar.kinds import SCALAR_INDICES
    from spark_lance.index.vector.create import open_segment
    from spark_lance.table.indices.describe import IndexDescription
else:
    SCALAR_INDICES = late("spark_lance.index.scalar.kinds", "SCALAR_INDICES")
    segments_of = late("spark_lance.index.entries", "segments_of")
    open_segment = late("spark_lance.index.vector.create", "open_segment")

__all__ = ["segment_figures"]


def segment_figures(snapshot: Snapshot, index: IndexDescription) -> list[dict[str, Any]]:
    """Return a dict per segment.

    All segments have `uuid`, `num_fragments` and `size_bytes`. Vector indices also have `index_type`,
    `metric_type`, `uri`, `num_partitions`, `centroids` (a list of vectors), `loss` (None if the writer did
    not store it) and `partitions` (with their `size` in rows). Codes have `sub_index` with `index_type`,
    `metric_type`, `dimension`, `nbits` and `num_sub_vectors`. Other indices have the figures of their kind
    (`ScalarIndex.figures`): sizes of zones, filters, how text was cut.

    Raises:
        FormatError: files of the index are damaged.
    """
    plain: list[dict[str, Any]] = [
        {
            "uuid": segment.uuid,
            "num_fragments": None if segment.fragment_ids is None else len(segment.fragment_ids),
            "size_bytes": segment.size_bytes,
            **({"params": dict(index.details)} if index.details else {}),
        }
        for segment in index.segments
    ]
    label = index.type_url.rpartition(".")[2].lower()
    kind = next((each for each in SCALAR_INDICES.values() if each.label == label), None)
    if kind is not None:
        for usable in segments_of(snapshot, label, kind.newest):
            for figures in plain if usable.name == index.name else ():
                if figures["uuid"].replace("-", "") == usable.entry.uuid.uuid.hex():
                    figures |= kind(usable).figures()
    if label != VECTOR_LABEL:
        return plain
    result = {
        segment.entry.uuid.uuid.hex(): segment
        for segment in segments_of(snapshot, VECTOR_LABEL, VECTOR_NEWEST)
        if segment.name == index.name
    }
    for figures in plain:
        number = figures["uuid"].replace("-", "")
        if number not in result:
            continue
        segment = result[number]
        try:
            opened = open_segment(segment)
            centroids = opened.ivf.centroids
        except UnsupportedFormatError:
            continue
        details = dict(index.details.get("compression") or {})
        sub = {"index_type": details.pop("type", "flat").upper(), "dimension": int(centroids.shape[1])}
        if "num_bits" in details:
            details["nbits"] = details.pop("num_bits")
        figures |= {
            "index_type": opened.kind,
            "index_file_version": "V3",
            "metric_type": opened.metric,
            "uri": opened.index.store.uri(opened.index.path),
            "loss": opened.training_loss,
            "num_partitions": len(opened.lengths),
            "centroids": centroids.tolist(),
            "partitions": [{"size": int(size)} for size in opened.lengths],
            "sub_index": {**sub, **details, **opened.quantizer.figures()},
        }
    return plain
