"""The primitive behind `cond`, `switch` and `gated`, with its rules."""

from .choose import Like as Like
from .choose import choose as choose
from .dependence import depends_on as depends_on
from .masked_operand import broadcast_mask as broadcast_mask
from .primitive import varying_as as varying_as
from .primitive import zeros as zeros
from .primitive import zeros_varying as zeros_varying
