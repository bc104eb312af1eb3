"""Worker processes that are started afresh find this first: faults are planted there, too."""

import planting

planting.by_environment()
