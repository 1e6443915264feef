"""Reducers: the state of a block of values, and the merge of two states."""

from .distribution import Histogram as Histogram
from .distribution import Quantile as Quantile
from .extremes import ArgMax as ArgMax
from .extremes import ArgMin as ArgMin
from .extremes import Extreme as Extreme
from .extremes import Max as Max
from .extremes import Min as Min
from .extremes import TopK as TopK
from .many import ReduceLike as ReduceLike
from .many import ReducerTree as ReducerTree
from .many import as_reducers as as_reducers
from .many import reduce_batches as reduce_batches
from .moments import Mean as Mean
from .moments import Sum as Sum
from .moments import Var as Var
from .reducer import AbstractReducer as AbstractReducer
from .reducer import Over as Over
from .reducer import Reducer as Reducer
from .reducer import as_over as as_over
from .reducer import pick as pick
