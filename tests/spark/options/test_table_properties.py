"""TBLPROPERTIES of Delta and Iceberg: which have an effect, which have none, and which are refused."""

from __future__ import annotations

import logging

import pytest

from spark_lance.errors import OptionError
from spark_lance.spark.options.table_properties import check_setting, needs_stable_row_ids

WITH_EFFECT = {
    "delta.appendOnly": "true",
    "appendOnly": "false",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "INTERVAL 1 week",
    "delta.enableChangeDataFeed": "true",
    "history.expire.max-snapshot-age-ms": "432000000",
    "history.expire.min-snapshots-to-keep": "3",
    "write.wap.enabled": "true",
    "gc.enabled": "false",
    "write.format.default": "lance",
    "write.distribution-mode": "range",
    "delta.isolationLevel": "WriteSerializable",
    "owner": "finance",
}
WITHOUT_EFFECT = {
    "format-version": "2",
    "read.split.target-size": "268435456",
    "write.parquet.compression-codec": "zstd",
    "write.delete.mode": "merge-on-read",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.target-file-size-bytes": "536870912",
    "write.spark.accept-any-schema": "true",
    "commit.retry.num-retries": "10",
    "delta.columnMapping.mode": "name",
    "delta.autoOptimize.optimizeWrite": "true",
    "delta.minReaderVersion": "2",
    "delta.feature.deletionVectors": "supported",
}
# Each with a part of what to write instead.
REFUSED = {
    ("delta.appendOnly", "yes"): "must be true or false",
    ("delta.appendonly", "true"): "did you mean 'delta.appendOnly'",
    ("delta.apendOnly", "true"): "did you mean 'delta.appendOnly'",
    ("delta.logRetentionDuration", "soon"): "write one like 14days",
    ("delta.universalFormat.enabledFormats", "iceberg"): "CREATE TABLE other USING iceberg AS SELECT",
    ("delta.isolationLevel", "Serializable"): "leave it out",
    ("delta.myOwn", "1"): "use another prefix",
    ("delta.setTransactionRetentionDuration", "interval 7 days"): "spark_lance.transactions.max_age",
    ("history.expire.max-snapshot-age-ms", "5 days"): "must be a number",
    ("history.expire.max-snapshot-age", "5"): "did you mean 'history.expire.max-snapshot-age-ms'",
    ("write.format.default", "orc"): "leave it out",
    ("write.data.path", "s3://b/p"): "CREATE TABLE lance.`/path`",
    ("write.distribution-mode", "sorted"): "must be none, hash or range",
    ("write.merge.isolation-level", "serializable"): "leave it out",
    ("write.wap.enable", "true"): "did you mean 'write.wap.enabled'",
    ("encryption.key-id", "k"): "let the store encrypt",
}


@pytest.mark.parametrize(("name", "value"), WITH_EFFECT.items())
def test_properties_with_an_effect(name: str, value: str, caplog: pytest.LogCaptureFixture) -> None:
    check_setting(name, value)
    assert not caplog.records


@pytest.mark.parametrize(("name", "value"), WITHOUT_EFFECT.items())
def test_a_property_without_effect_is_named(name: str, value: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_setting(name, value)
    assert f"table property {name} has no effect" in caplog.text


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_properties_that_promise_more_are_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError) as caught:
        check_setting(name, value)
    assert REFUSED[name, value] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_row_tracking_and_the_change_feed_need_stable_row_ids() -> None:
    assert needs_stable_row_ids({"delta.enableRowTracking": "TRUE"})
    assert needs_stable_row_ids({"delta.enableChangeDataFeed": "true"})
    assert not needs_stable_row_ids({"delta.enableRowTracking": "false", "a": "true"})
