"""GG110-GG112, GG114: state of modules and optimizers left in workers, or returned as a copy."""
