"""The functions that rows name: the effect of a call, method or decorator on values."""
