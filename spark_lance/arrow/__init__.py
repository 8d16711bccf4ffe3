"""Operations on Arrow arrays and their buffers that every reader and writer shares."""
