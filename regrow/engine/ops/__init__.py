"""The operations that the engine can run, one per file, each with its kernel in a C file of the same name."""
