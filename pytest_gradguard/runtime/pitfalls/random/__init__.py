"""GG304, GG305, GG307 and GG308: workers that draw the same random numbers."""
