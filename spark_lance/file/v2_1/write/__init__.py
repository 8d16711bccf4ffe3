"""From Arrow fields to pages."""
