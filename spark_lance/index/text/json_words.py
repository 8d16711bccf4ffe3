"""The words of JSON documents: every value with the path to it, and queries that ask for such.

    path,type,word      type is str, number, bool or null; word is a word of the text, or the value as JSON

A path is the keys on the way, with dots between; items of arrays have the path of the array, and a document
that is no container has none: `{"a":{"b":["red fish",7]},"c":null}` has the words `a.b,str,red`,
`a.b,str,fish`, `a.b,number,7` and `c,null,null`. Values follow each other in the order of the document, whose
keys are sorted.

A query is such a triple, with a text of several words perhaps, or several with semicolons between:
`a.b,str,red fish;c,null,null`. Keys with commas cannot be asked for. (Lance index format, inverted:
lance_tokenizer "json".)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import OptionError, UnsupportedFormatError
from spark_lance.file.json_binary import strings_of, texts_of
from spark_lance.file.json_values import CONTAINER, FALSE, MISSING, NULL, NUMBER, STRING, TRUE, JsonValues

__all__ = ["Triples", "document_triples", "query_triples"]

Ints = npt.NDArray[np.int64]
# Words of texts, the text of each, and how many words stand before it.
Cut = Callable[[pa.Array], tuple[pa.Array, Ints, Ints]]
# Words, the document of each, and its place there.
Triples = tuple[pa.Array, Ints, Ints]

_TYPES = {NUMBER: "number", TRUE: "bool", FALSE: "bool", NULL: "null"}
_TEXT = "str"
_MAX_DEPTH = 130


def document_triples(documents: pa.Array, cut: Cut) -> Triples:
    """Return the words of stored documents, in the order of the documents.

    Args:
        documents: as they are stored; nulls have no words.
        cut: what makes words of texts.

    Raises:
        FormatError, UnsupportedFormatError: the bytes of a document are damaged, or of an unknown kind.
    """
    owners, path, paths, values = _leaves(JsonValues.of(documents))
    is_text = values.kinds == STRING
    texts, others = np.flatnonzero(is_text), np.flatnonzero(~is_text)
    words, text, within = cut(strings_of(values.take(texts)))
    labels = pa.array([_TYPES.get(kind) for kind in range(CONTAINER)]).take(
        pa.array(values.kinds[others].astype(np.int64))
    )
    triples = pa.concat_arrays(
        [
            _joined(paths, path[texts[text]], pa.array([_TEXT] * len(words), pa.string()), words),
            _joined(paths, path[others], labels.cast(pa.string()), texts_of(values.take(others))),
        ]
    )
    leaf = np.concatenate([texts[text], others])
    place = np.concatenate([within, np.zeros(len(others), np.int64)])
    order = np.argsort(leaf, kind="stable")
    # Words of a value stand behind all of the values before it.
    spans = np.where(is_text, 0, 1)
    np.maximum.at(spans, texts[text], within + 1)
    begins = np.cumsum(spans) - spans
    firsts = begins[np.searchsorted(owners, owners)]
    return triples.take(pa.array(order)), owners[leaf][order], (place + (begins - firsts)[leaf])[order]


def _joined(paths: pa.Array, path: Ints, types: pa.Array, words: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(paths.take(pa.array(path)), types, words, ",")


def _leaves(documents: JsonValues) -> tuple[Ints, Ints, pa.Array, JsonValues]:
    """Return all values that are no containers: documents, places of paths, all paths, and the values."""
    owners = np.flatnonzero(documents.kinds != MISSING)
    nodes = documents.take(owners)
    path, paths = np.zeros(len(nodes), np.int64), pa.array([""], pa.string())
    for _ in range(_MAX_DEPTH):
        inner = nodes.kinds == CONTAINER
        if not bool(inner.any()):
            is_leaf = np.isin(nodes.kinds, (STRING, *_TYPES))
            if not bool(is_leaf.all()):
                raise UnsupportedFormatError(f"a JSON value of kind {int(nodes.kinds[~is_leaf][0])}")
            return owners, path, paths, nodes
        children = nodes.children()
        below = path[children.owners]
        named = np.flatnonzero(children.keys.kinds == STRING)
        if len(named):
            below[named], paths = _longer(paths, below[named], strings_of(children.keys.take(named)))
        outer = np.flatnonzero(~inner)
        homes = np.concatenate([outer, children.owners])
        # A container's values take its place.
        order = np.argsort(homes, kind="stable")
        nodes = nodes.take(outer).joined(children.values).take(order)
        owners, path = owners[homes][order], np.concatenate([path[outer], below])[order]
    raise UnsupportedFormatError(f"a JSON value that is nested more than {_MAX_DEPTH} levels deep")


def _longer(paths: pa.Array, path: Ints, keys: pa.Array) -> tuple[Ints, pa.Array]:
    """Return the places of paths with a key each behind them, and all paths."""
    encoded = keys.dictionary_encode()
    names = encoded.dictionary
    pairs, back = np.unique(path * len(names) + encoded.indices.to_numpy(), return_inverse=True)
    before, last = paths.take(pa.array(pairs // len(names))), names.take(pa.array(pairs % len(names)))
    longer = pc.if_else(pc.equal(before, ""), last, pc.binary_join_element_wise(before, last, "."))
    return len(paths) + back.reshape(-1).astype(np.int64), pa.concat_arrays([paths, longer])


def query_triples(query: str, cut: Cut) -> Triples:
    """Return the words that a query asks for, as of one document.

    Raises:
        OptionError: it is no triple of path, type and value.
    """
    words: list[str] = []
    places: list[Any] = []
    for triple in query.split(";"):
        path, *rest = triple.split(",", 2)
        if len(rest) < 2 or rest[0] not in (_TEXT, *_TYPES.values()):
            raise OptionError(
                f"a search in JSON documents looks for path,type,value, such as a.b,str,words (types: "
                f"{_TEXT}, number, bool, null; several with semicolons between), not for {triple!r}"
            )
        begin = max(places, default=-1) + 1
        if rest[0] == _TEXT:
            tokens, _, within = cut(pa.array([rest[1]]))
            words += [f"{path},{_TEXT},{word}" for word in tokens.to_pylist()]
            places += (within + begin).tolist()
        else:
            words.append(triple)
            places.append(begin)
    return pa.array(words, pa.string()), np.zeros(len(words), np.int64), np.array(places, np.int64)
