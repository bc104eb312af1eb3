"""A TensorFlow tape around a parallel call: what its tasks use, and what its gradients lack."""
