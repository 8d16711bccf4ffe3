"""Read and write Lance datasets in pure Python, with a PySpark data source on top."""
