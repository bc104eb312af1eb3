"""The linter: finds gradients and GPUs at worker boundaries without running the program."""
