"""Reducers: statistics of a sweep (`reduce=`) or of batches, in a single pass."""

from ._reduce import ArgMax as ArgMax
from ._reduce import ArgMin as ArgMin
from ._reduce import Histogram as Histogram
from ._reduce import Max as Max
from ._reduce import Mean as Mean
from ._reduce import Min as Min
from ._reduce import Quantile as Quantile
from ._reduce import Reducer as Reducer
from ._reduce import Sum as Sum
from ._reduce import TopK as TopK
from ._reduce import Var as Var
