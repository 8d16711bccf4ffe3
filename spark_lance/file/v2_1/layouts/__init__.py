"""One module per page layout of Lance file format 2.1 and 2.2."""
