"""Reducers: states of blocks of values, and how two of them are merged."""

from .batches import reduce_batches as reduce_batches
from .extremes import ArgMax as ArgMax
from .extremes import ArgMin as ArgMin
from .extremes import Max as Max
from .extremes import Min as Min
from .histogram import Histogram as Histogram
from .many import ReduceLike as ReduceLike
from .many import ReducerTree as ReducerTree
from .many import as_reducers as as_reducers
from .moments import Mean as Mean
from .moments import Sum as Sum
from .moments import Var as Var
from .quantile import Quantile as Quantile
from .reducer import AbstractReducer as AbstractReducer
from .reducer import Reducer as Reducer
from .reducer import pick as pick
from .reducer import struct_of as struct_of
from .topk import TopK as TopK
