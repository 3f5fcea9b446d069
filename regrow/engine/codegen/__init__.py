"""C structs, kernels made for one network, and building them."""
