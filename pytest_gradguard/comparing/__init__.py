"""Compares a program with itself: with its workers, and with their work done in its own process.

`running` runs it in child processes (`child`), in which `noting` records gradients and parameters
at each step, as sketches of bounded size. `difference` finds the first difference between two runs.
The integrations define how work runs in the calling process (`runtime/kernel/inline`); `isolation`
restores what a task may change there and could not in a worker process.
"""
