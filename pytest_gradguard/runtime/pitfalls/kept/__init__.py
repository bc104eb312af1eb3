"""GG106: gradients left in the workers that computed them."""
