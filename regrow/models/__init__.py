"""The networks of the paper's evaluation."""
