"""Last stage: running a plan."""
