"""The training that a pruner is a guest in: parameters and their memory, optimizers, processes, the caller's line."""
