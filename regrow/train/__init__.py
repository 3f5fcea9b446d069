"""Turn a recipe into a trained model in a run folder.

>>> from regrow.runs.recipe import Recipe
>>> from regrow.train.run import run
>>> run(Recipe(data="digits", method="dpf", sparsity=0.9), "runs/first")["top1"]
"""
