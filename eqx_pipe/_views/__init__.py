"""What people look at: descriptions and drawings of pipelines."""
