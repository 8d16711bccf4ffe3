"""One module per compressive encoding of Lance file format 2.1 and 2.2: plain functions, one per role."""
