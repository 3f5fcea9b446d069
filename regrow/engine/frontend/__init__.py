"""First stage: a model becomes a graph."""
