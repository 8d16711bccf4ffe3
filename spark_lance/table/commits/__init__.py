"""Making versions: the commit loop, conflicts with other writers, and starting over."""
