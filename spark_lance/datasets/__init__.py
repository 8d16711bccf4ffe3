"""The table without Spark: each module is a part of `LanceDataset`."""
