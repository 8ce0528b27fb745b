"""Containers as values, the engine that runs them, and the guarantee that none is left behind."""
