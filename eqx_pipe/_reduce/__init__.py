"""Reducers: the state of a block of values, and the merge of two states."""

from .distribution import Histogram as Histogram
from .distribution import Quantile as Quantile
from .extremes import ArgMax as ArgMax
from .extremes import ArgMin as ArgMin
from .extremes import Extreme as Extreme
from .extremes import Max as Max
from .extremes import Min as Min
from .extremes import TopK as TopK
from .interface import AbstractReducer as AbstractReducer
from .interface import Over as Over
from .interface import as_over as as_over
from .interface import pick as pick
from .many import ReduceLike as ReduceLike
from .many import ReducerTree as ReducerTree
from .many import as_reducers as as_reducers
from .many import reduce_batches as reduce_batches
from .moments import Mean as Mean
from .moments import Sum as Sum
from .moments import Var as Var
from .reducer import Reducer as Reducer
