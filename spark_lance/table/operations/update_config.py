"""UpdateConfig: change the table's config, and the metadata of the table, its schema and its fields.

Each of the four is a map of strings. An update sets keys and deletes keys (an entry without a value). With
`replace`, it clears the map first. Fields are identified by id. (Lance table format, config.)
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from spark_lance.errors import SchemaError, UnsupportedFormatError
from spark_lance.proto import transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.next_version import CommitContext, finish_version, start_version

Texts = Mapping[str, str | None]
UpdateMap = transaction_pb2.Transaction.UpdateMap

# Metadata that protobuf fields of the field store, too: primary and clustering keys.
_KEYS_OF_KEYS = ("lance-schema:unenforced-primary-key", "lance-schema:unenforced-clustering-key")


def text_updates(values: Texts, *, replace: bool = False) -> UpdateMap:
    """Return the update of one map.

    Args:
        values: keys to set; the value None deletes a key, which need not exist.
        replace: delete all other keys.
    """
    entry = transaction_pb2.Transaction.UpdateMapEntry
    entries = [entry(key=key, value=value) for key, value in values.items()]
    return UpdateMap(update_entries=entries, replace=replace)


def update_config(
    base: Manifest, operation: transaction_pb2.Transaction.UpdateConfig, context: CommitContext
) -> Manifest:
    """Return the version after `base` with the operation's updates.

    Raises:
        SchemaError: a field does not exist, or its key metadata would change.
        UnsupportedFormatError: the operation has the format of old writers.
    """
    if operation.upsert_values or operation.delete_keys or operation.schema_metadata:
        raise UnsupportedFormatError("a config update in its older form")
    message = start_version(base, context)
    _update_texts(message.config, operation.config_updates)
    _update_texts(message.table_metadata, operation.table_metadata_updates)
    _update_bytes(message.schema_metadata, operation.schema_metadata_updates)
    fields = {field.id: field for field in message.fields}
    for number, updates in operation.field_metadata_updates.items():
        if number not in fields:
            raise SchemaError(f"there is no field with the id {number}")
        field = fields[number]
        changed_keys = {entry.key for entry in updates.update_entries}
        changed_keys.update(field.metadata if updates.replace else ())
        if any(key.startswith(_KEYS_OF_KEYS) for key in changed_keys):
            raise SchemaError(f"field {field.name!r}: a config update cannot change key metadata")
        _update_bytes(field.metadata, updates)
    return finish_version(message, base.index_section, base.naming, context)


def _update_texts(target: MutableMapping[str, str], updates: UpdateMap) -> None:
    if updates.replace:
        target.clear()
    for entry in updates.update_entries:
        if entry.HasField("value"):
            target[entry.key] = entry.value
        else:
            target.pop(entry.key, None)


def _update_bytes(target: MutableMapping[str, bytes], updates: UpdateMap) -> None:
    texts: dict[str, str] = {}
    _update_texts(texts, updates)
    removed_keys = {entry.key for entry in updates.update_entries} if not updates.replace else set(target)
    for key in removed_keys:
        target.pop(key, None)
    target.update({key: value.encode() for key, value in texts.items()})
