"""Text indexes: the rows of each word, and their scores for a query."""
