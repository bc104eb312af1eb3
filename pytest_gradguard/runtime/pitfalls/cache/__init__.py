"""GG108: a joblib cache stores tensors without their graph."""
