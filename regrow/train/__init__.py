"""From a recipe to a finished run folder."""
