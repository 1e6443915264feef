"""Pictures of an xarray dataset, whatever made it."""
