"""How indices work: their files, how they are built and searched."""
