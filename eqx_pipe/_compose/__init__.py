"""The combinators, one or two in each file, and the helpers that they share."""

from .chain import chain as chain
from .chain import residual as residual
from .cond import cond as cond
from .cond import gated as gated
from .cond import switch as switch
from .entries import at as at
from .entries import feed as feed
from .graph import graph as graph
from .loops import Repeat as Repeat
from .loops import batched as batched
from .loops import check_output as check_output
from .loops import ensemble as ensemble
from .loops import repeat as repeat
from .loops import scan as scan
from .loops import with_remat as with_remat
from .outputs import outputs as outputs
from .parallel import parallel as parallel
from .parallel import weighted as weighted
from .parameters import frozen as frozen
from .parameters import precision as precision
from .parameters import tied as tied
from .parameters import trainable as trainable
