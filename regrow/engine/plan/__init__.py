"""Middle stage: a graph becomes steps on memory."""
