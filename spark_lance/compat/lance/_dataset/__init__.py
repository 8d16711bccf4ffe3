"""Parts of datasets under pylance's private names that scripts import."""
