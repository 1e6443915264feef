"""Fails if a type checker knows the whole type of fewer than 95 % of the public names.

Reads what `pyright --verifytypes eqx_pipe --ignoreexternal --outputjson` prints. Pandas
ships no types, so its stubs are installed beside: without them `SweepResult.to_pandas`
returns something unknown, and all that takes or returns a `SweepResult` does, too.
"""

import json
import sys

LEAST = 0.95

report = json.load(sys.stdin)["typeCompleteness"]
score = report["completenessScore"]
for symbol in report["symbols"]:
    if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]:
        for diagnostic in symbol["diagnostics"]:
            print(symbol["name"], "-", " ".join(diagnostic["message"].split()))
print(f"the types of {score:.1%} of the public names are known")
sys.exit(0 if score >= LEAST else f"fewer than {LEAST:.0%}: annotate the names above")
