"""Hypothesis strategies for arrays, arguments, pipelines and spaces."""

from .arrays import arrays as arrays
from .arrays import keys as keys
from .pipelines import pipelines as pipelines
from .spaces import spaces as spaces
from .typed import arguments as arguments
from .typed import from_jaxtyping as from_jaxtyping
from .typed import given_typed as given_typed
