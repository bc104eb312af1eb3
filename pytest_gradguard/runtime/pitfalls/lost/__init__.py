"""GG101-GG104, GG107, GG113: gradients that end where something crosses to or from a worker."""
