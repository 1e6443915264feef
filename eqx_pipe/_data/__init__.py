"""Records in an order that is a function of the seed: sources, loader, cursor, scan."""
