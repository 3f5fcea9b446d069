"""What regrow is a guest in: parameters and their memory, optimizers, processes, cores, disks, the caller's words."""
