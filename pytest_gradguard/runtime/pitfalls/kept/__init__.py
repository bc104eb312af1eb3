"""GG106: gradients that stay in the workers that computed them."""
