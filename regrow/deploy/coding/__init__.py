"""How masks and numbers become bytes, and back: the parts of the packed file."""
