"""GG105: a TensorFlow tape around a parallel call, and what its gradients lack of its tasks."""
