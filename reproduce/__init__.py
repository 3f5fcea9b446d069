"""The experiments of the paper: `python -m reproduce` lists them. Part of the repository, not of the package."""
