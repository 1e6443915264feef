"""The combinators, one (or a pair) in a file; what they share lies beside them."""

from .batched import batched as batched
from .branch import cond as cond
from .branch import switch as switch
from .chain import chain as chain
from .ensemble import ensemble as ensemble
from .feed import feed as feed
from .focus import at as at
from .frozen import frozen as frozen
from .gated import gated as gated
from .graph import graph as graph
from .outputs import outputs as outputs
from .parallel import parallel as parallel
from .precision import precision as precision
from .repeat import Policy as Policy
from .repeat import Repeat as Repeat
from .repeat import check_same as check_same
from .repeat import repeat as repeat
from .repeat import with_remat as with_remat
from .residual import residual as residual
from .scan import scan as scan
from .tapped import tapped as tapped
from .tied import tied as tied
from .trainable import trainable as trainable
from .weighted import weighted as weighted
