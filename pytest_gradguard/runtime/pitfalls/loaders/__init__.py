"""GG206: what a daemon runs its loader in."""
