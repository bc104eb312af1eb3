"""GG110-GG112: state of modules and optimizers that stays behind, or comes back as a copy."""
