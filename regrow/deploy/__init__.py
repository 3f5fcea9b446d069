"""From a sparse model to small files and fast inference."""
