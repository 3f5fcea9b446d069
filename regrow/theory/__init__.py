"""The convergence theorems as runnable checks."""
