"""The combinators, one or two in each file, and the helpers that they share."""

from .at import at as at
from .batched import batched as batched
from .chain import chain as chain
from .cond import cond as cond
from .cond import switch as switch
from .ensemble import ensemble as ensemble
from .feed import feed as feed
from .frozen import frozen as frozen
from .gated import gated as gated
from .graph import graph as graph
from .outputs import outputs as outputs
from .parallel import parallel as parallel
from .precision import precision as precision
from .repeat import Policy as Policy
from .repeat import Repeat as Repeat
from .repeat import check_output as check_output
from .repeat import repeat as repeat
from .repeat import with_remat as with_remat
from .residual import residual as residual
from .scan import scan as scan
from .tied import tied as tied
from .trainable import trainable as trainable
from .weighted import weighted as weighted
