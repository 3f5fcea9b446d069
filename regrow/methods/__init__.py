"""One file per pruning method and one line in `registry.METHODS`; all methods are used like `DPF`."""
