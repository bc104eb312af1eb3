"""GG206: a loader that cannot start its workers in a daemon or a loky worker."""
