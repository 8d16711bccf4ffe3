"""Operations on Arrow arrays and their buffers that all readers and writers share."""
