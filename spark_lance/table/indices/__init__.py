"""The indexes of a table as its manifest describes them; the index layer reads and searches them."""
