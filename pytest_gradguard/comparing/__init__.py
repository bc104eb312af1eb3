"""A program compared with itself: with its workers, and with their work done in its own process.

`running` runs it in child processes (`child`), in which `noting` notes gradients and parameters at
each step, as sketches of bounded size. `difference` finds where two runs first part. What is run in
the calling process, and how, is the integrations' to say (`runtime/kernel/inline`); what a task may
change there, as a process could not have done, is put back by `isolation`.
"""
