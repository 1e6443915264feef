"""Reducers: the state of a block of values, and the merge of two states."""

from .reducer import (
    AbstractReducer,
    ArgMax,
    ArgMin,
    Extreme,
    Histogram,
    Max,
    Mean,
    Min,
    Over,
    Quantile,
    ReduceLike,
    Reducer,
    ReducerTree,
    Sum,
    TopK,
    Var,
    as_over,
    as_reducers,
    pick,
)
