"""The combinators, one or two in each file, and the helpers that they share."""

from .batched import batched as batched
from .chain import chain as chain
from .chain import residual as residual
from .cond import cond as cond
from .cond import gated as gated
from .cond import switch as switch
from .entries import at as at
from .entries import feed as feed
from .graph import graph as graph
from .outputs import outputs as outputs
from .parallel import parallel as parallel
from .parallel import weighted as weighted
from .parameters import frozen as frozen
from .parameters import precision as precision
from .parameters import tied as tied
from .parameters import trainable as trainable
from .repeat import Policy as Policy
from .repeat import Repeat as Repeat
from .repeat import check_output as check_output
from .repeat import ensemble as ensemble
from .repeat import repeat as repeat
from .repeat import with_remat as with_remat
from .scan import scan as scan
