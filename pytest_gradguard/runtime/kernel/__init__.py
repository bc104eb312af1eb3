"""What the whole guard stands on: names no pitfall, imports no framework."""
