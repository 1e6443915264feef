"""The combinators, one or two in each file, and the helpers that they share."""

from .chain import chain, residual
from .cond import cond, gated, switch
from .entries import at, feed
from .graph import graph
from .loops import Repeat, batched, check_output, ensemble, repeat, scan, with_remat
from .outputs import outputs
from .parallel import parallel, weighted
from .parameters import frozen, precision, tied, trainable
