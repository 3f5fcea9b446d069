"""What a run is and what it leaves on disk: recipes, run folders and their results. Nothing here imports torch."""
