"""What methods can choose beyond Algorithm 1: units, scores, budgets, random numbers, where the dense weights are."""
