"""The public names that need Hypothesis, which is loaded on their first use."""

from ._annotations.arguments import arguments as arguments
from ._annotations.arguments import from_jaxtyping as from_jaxtyping
from ._annotations.typed import given_typed as given_typed
from ._strategies.arrays import arrays as arrays
from ._strategies.arrays import keys as keys
from ._strategies.pipelines import pipelines as pipelines
from ._strategies.spaces import spaces as spaces
