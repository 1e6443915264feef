"""Hypothesis strategies for pytrees, stages, spaces and meshes."""
