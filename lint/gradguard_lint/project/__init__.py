"""File discovery, the byte search, and imports between files."""
