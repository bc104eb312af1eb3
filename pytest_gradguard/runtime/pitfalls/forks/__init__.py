"""GG303: forked workers that would wait forever for threads that stayed behind in the parent."""
