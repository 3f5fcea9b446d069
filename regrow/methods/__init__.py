"""One short file per pruning method, all used like `DPF`."""
