"""The write-ahead layer of a table (MemWAL): shards with logs and SSTables of rows that are not in it yet."""
