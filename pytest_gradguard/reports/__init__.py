"""How findings are written: `text` for people, JSON for tools; the same voice for every origin."""
