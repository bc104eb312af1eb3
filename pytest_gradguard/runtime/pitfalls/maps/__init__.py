"""GG306: tasks write to arrays that joblib maps read-only."""
