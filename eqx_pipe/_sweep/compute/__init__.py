"""The computation of a range of points: their selection, devices and batches."""
