"""What a pruner is a guest in: parameters and their memory, optimizers, processes and cores, the caller's words."""
