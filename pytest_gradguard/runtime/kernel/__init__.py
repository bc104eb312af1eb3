"""The basis of the guard: it names no pitfall and imports no framework."""
