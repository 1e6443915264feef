"""Results of sweeps: labels, selection, plots, files and text."""

from .best import Best as Best
from .best import Compared as Compared
from .best import means_of as means_of
from .best import ranked as ranked
from .best import replicates as replicates
from .best import scores as scores
from .files import layout_of as layout_of
from .files import versions as versions
from .names import NamedDims as NamedDims
from .names import OutputCoords as OutputCoords
from .names import as_output_coords as as_output_coords
from .names import check_names as check_names
from .names import check_output_coords as check_output_coords
from .names import coordinates_of as coordinates_of
from .names import coords_texts as coords_texts
from .names import inner_dims as inner_dims
from .names import names_in as names_in
from .names import names_of as names_of
from .names import reduced_coords as reduced_coords
from .names import shapes_of as shapes_of
from .names import storable as storable
from .result import Steps as Steps
from .result import SweepResult as SweepResult
from .result import concatenated as concatenated
from .result import result_in as result_in
