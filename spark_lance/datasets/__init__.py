"""The face of a table without Spark, by what one does with it: each module is a part of `LanceDataset`."""
