"""Spaces: from an index to a point, without computing the others."""

from .axes import Geomspace as Geomspace
from .axes import Linspace as Linspace
from .axes import Values as Values
from .axis import Axis as Axis
from .designs import latin_hypercube as latin_hypercube
from .designs import sobol as sobol
from .mapped import Mapped as Mapped
from .random import Random as Random
from .seeds import Seeds as Seeds
from .space import Space as Space
from .static import Static as Static
