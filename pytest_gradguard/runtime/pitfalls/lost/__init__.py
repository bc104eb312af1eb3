"""GG101-GG104, GG107, GG113: gradients that end at a transfer to or from a worker."""
