"""Results of sweeps: labels, selection, plots, files and text."""
