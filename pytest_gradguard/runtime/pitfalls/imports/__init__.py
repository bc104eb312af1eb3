"""GG109: a worker imports a module again, and uses its initial globals."""
