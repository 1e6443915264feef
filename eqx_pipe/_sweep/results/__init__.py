"""Results of sweeps: labelled, selected, drawn, saved, printed."""
