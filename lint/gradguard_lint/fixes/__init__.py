"""Repairs: changes stated by rules become edits of the source, made by libcst and verified."""
