"""Results of sweeps: labels, selection, plots, files and text."""

from .result import Best as Best
from .result import Compared as Compared
from .result import KnownCoords as KnownCoords
from .result import OutputCoords as OutputCoords
from .result import Steps as Steps
from .result import SweepResult as SweepResult
from .result import as_output_coords as as_output_coords
from .result import check_names as check_names
from .result import check_output_coords as check_output_coords
from .result import concatenated as concatenated
from .result import coords_texts as coords_texts
from .result import inner_dims as inner_dims
from .result import layout_of as layout_of
from .result import means_of as means_of
from .result import names_in as names_in
from .result import names_of as names_of
from .result import ranked as ranked
from .result import reduced_coords as reduced_coords
from .result import replicates as replicates
from .result import result_in as result_in
from .result import scores as scores
from .result import shapes_of as shapes_of
from .result import storable as storable
from .result import versions as versions
