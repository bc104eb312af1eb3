"""One module a pitfall, named after its code; each sets ``PITFALL``."""
