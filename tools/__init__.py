"""Tools of developers; no part of the installed package."""
