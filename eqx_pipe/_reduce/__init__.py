"""Reducers: the state of a block of values, and the merge of two states."""

from .reducer import AbstractReducer as AbstractReducer
from .reducer import ArgMax as ArgMax
from .reducer import ArgMin as ArgMin
from .reducer import Extreme as Extreme
from .reducer import Histogram as Histogram
from .reducer import Max as Max
from .reducer import Mean as Mean
from .reducer import Min as Min
from .reducer import Over as Over
from .reducer import Quantile as Quantile
from .reducer import ReduceLike as ReduceLike
from .reducer import Reducer as Reducer
from .reducer import ReducerTree as ReducerTree
from .reducer import Sum as Sum
from .reducer import TopK as TopK
from .reducer import Var as Var
from .reducer import as_over as as_over
from .reducer import as_reducers as as_reducers
from .reducer import pick as pick
