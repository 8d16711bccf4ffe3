"""From pages to Arrow fields."""
