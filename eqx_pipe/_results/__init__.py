"""Results of sweeps: labels, selection, plots, files and text."""

from .best import Best, Compared, means_of, ranked, replicates, scores
from .files import layout_of, versions
from .names import (
    NamedDims,
    OutputCoords,
    as_output_coords,
    check_names,
    check_output_coords,
    coordinates_of,
    coords_texts,
    inner_dims,
    names_in,
    names_of,
    reduced_coords,
    shapes_of,
    storable,
)
from .result import Steps, SweepResult, concatenated, result_in
