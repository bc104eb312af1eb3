"""Which files there are, which of them matter, and who imports whom."""
