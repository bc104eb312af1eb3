"""The abstract interpreter: one machine, and the effects of statements and expressions on its
state."""
