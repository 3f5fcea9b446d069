"""The commands of `regrow`, one function each; what they do lives in the packages below."""
