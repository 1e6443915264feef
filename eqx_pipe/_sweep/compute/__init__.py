"""One stretch of points on the devices: which points, on which device, in batches."""
