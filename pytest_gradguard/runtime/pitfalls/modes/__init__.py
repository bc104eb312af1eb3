"""GG301: modes of the calling thread that its workers do not have."""
