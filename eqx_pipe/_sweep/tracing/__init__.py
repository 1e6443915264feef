"""The user's function as a program: traced, read, and told apart from others."""
