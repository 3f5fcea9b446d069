"""The paper's tables and figures as runnable recipes, beside its published numbers."""
