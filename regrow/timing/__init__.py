"""Times a model in the engine and in other runtimes, in turns."""
