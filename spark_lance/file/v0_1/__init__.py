"""Legacy file format 0.1: plain Arrow-like buffers in small batches of rows. Read only."""
