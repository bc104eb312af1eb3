"""What integrations stand on: how a call begins, how a task travels, and what the program holds."""
