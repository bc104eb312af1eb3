"""GG109: a worker imports a module again, and has its initial globals."""
