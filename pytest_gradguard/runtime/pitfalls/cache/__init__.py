"""GG108: a cache of joblib's keeps tensors that have lost their graph."""
