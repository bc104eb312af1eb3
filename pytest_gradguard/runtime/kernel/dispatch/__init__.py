"""The basis of integrations: how a call begins, how a task is sent, and what the program gets."""
