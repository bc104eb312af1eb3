"""Source text to a syntax tree, with one clear error where a file cannot be read."""
