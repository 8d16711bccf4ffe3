"""What a manifest says of indices; how they work is the index layer's."""
