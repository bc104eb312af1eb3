"""Parse source into a syntax tree, with one clear error if a file cannot be read."""
