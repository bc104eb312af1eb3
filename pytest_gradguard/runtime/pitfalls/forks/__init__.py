"""GG303: forked workers that would wait forever for threads that exist only in the parent."""
