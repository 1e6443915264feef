"""Reducers: the state of a block of values, and the merge of two states."""

from .batches import reduce_batches as reduce_batches
from .best import ArgMax as ArgMax
from .best import ArgMin as ArgMin
from .best import Extreme as Extreme
from .best import TopK as TopK
from .extremes import Max as Max
from .extremes import Min as Min
from .histogram import Histogram as Histogram
from .interface import AbstractReducer as AbstractReducer
from .interface import Over as Over
from .interface import as_over as as_over
from .interface import pick as pick
from .interface import struct_of as struct_of
from .many import ReduceLike as ReduceLike
from .many import ReducerTree as ReducerTree
from .many import as_reducers as as_reducers
from .moments import Mean as Mean
from .moments import Sum as Sum
from .moments import Var as Var
from .quantile import Quantile as Quantile
from .reducer import Reducer as Reducer
