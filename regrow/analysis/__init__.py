"""What the paper measures: parameters, MACs and the dynamics of masks."""
