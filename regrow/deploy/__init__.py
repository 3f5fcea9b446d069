"""The sparse inference engine."""
