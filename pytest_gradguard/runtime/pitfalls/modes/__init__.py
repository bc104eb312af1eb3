"""GG301: modes of the calling thread that its workers lack."""
