"""The operations that the engine can run, one per file."""
