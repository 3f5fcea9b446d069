"""What methods can choose beyond Algorithm 1: units of several weights, scores, budgets, random numbers."""
