"""GG105: a TensorFlow tape around a parallel call, whose gradients lack parts from its tasks."""
