"""Results of sweeps: labels, selection, plots, files and text."""

from .label import CellPoints as CellPoints
from .label import CellValues as CellValues
from .label import KnownCoords as KnownCoords
from .label import OutputCoords as OutputCoords
from .label import as_output_coords as as_output_coords
from .label import check_names as check_names
from .label import check_reduced_coords as check_reduced_coords
from .label import coords_texts as coords_texts
from .label import inner_dims as inner_dims
from .label import names_in as names_in
from .label import names_of as names_of
from .label import reduced_coords as reduced_coords
from .label import storable as storable
from .label import versions as versions
from .result import Best as Best
from .result import Compared as Compared
from .result import Steps as Steps
from .result import SweepResult as SweepResult
from .result import ranked as ranked
from .result import scores as scores
from .saved import layout_of as layout_of
