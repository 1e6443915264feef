"""What all choices between stages share: one primitive, and what its branches are."""
