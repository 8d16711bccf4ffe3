"""JSON documents in their binary form (JSONB): values, numbers, texts and columns of them."""
