"""Compares a case through Outboard with the same case on the local GPU."""

from __future__ import annotations

import math
from collections import Counter

from outside.cases import FAIL, HANG, LEFT_OUT, PASS, SKIP, Outcome

SAME = "same"
DIFFERS = "differs"
# The two runs through Outboard do not agree with each other, and one agrees with the local GPU.
UNSTEADY = "unsteady"
LOCAL_FAILS = "local fails too"
# Two local runs give different bits: the numbers agree.
NUMBERS = "same numbers"
# Two local runs do not even give the same numbers, or not the same outcome.
IRREPRODUCIBLE = "not reproducible locally"
SKIPPED = "skipped"
# The case had no turn in one of the modes, or too little time on the local GPU.
NOT_COMPARED = "not compared"
# There is no local GPU, and the case fails by its own measure.
FAILS = "fails"
VERDICTS = (SAME, NUMBERS, LOCAL_FAILS, IRREPRODUCIBLE, SKIPPED, NOT_COMPARED, UNSTEADY, DIFFERS, FAILS)
DEFECTS = (DIFFERS, UNSTEADY, FAILS)

NUMBER_TOLERANCE_RELATIVE = 2e-2
NUMBER_TOLERANCE_ABSOLUTE = 1e-3


def equal(a: Outcome, b: Outcome) -> bool:
    return a.outcome == b.outcome and (a.outcome != PASS or a.digest == b.digest)


def judge(local: list[Outcome], remote: list[Outcome]) -> str:
    """Returns the verdict on one case from its runs, the first of each and, where they differed, more."""
    if not remote or remote[0].outcome == LEFT_OUT:
        return NOT_COMPARED
    if not local:
        return {PASS: SAME, SKIP: SKIPPED}.get(remote[0].outcome, FAILS)
    if local[0].outcome == LEFT_OUT or (local[0].outcome == HANG and remote[0].outcome == PASS):
        return NOT_COMPARED
    if equal(local[0], remote[0]):
        return {PASS: SAME, SKIP: SKIPPED}.get(remote[0].outcome, LOCAL_FAILS)
    locals_, remotes = _ran(local), _ran(remote)
    if any(not equal(locals_[0], other) for other in locals_):
        return _irreproducible(locals_, remotes)
    if local[0].outcome not in (PASS, SKIP) and remote[0].outcome != PASS:
        # It fails here and there, in another manner.
        return LOCAL_FAILS if {local[0].outcome, remote[0].outcome} <= {FAIL, SKIP} else DIFFERS
    if any(equal(locals_[0], other) for other in remotes[1:]):
        return UNSTEADY
    return DIFFERS


def _ran(runs: list[Outcome]) -> list[Outcome]:
    return [run for run in runs if run.outcome != LEFT_OUT]


def _irreproducible(local: list[Outcome], remote: list[Outcome]) -> str:
    """Verdict where local runs do not agree: the numbers decide, if those of the local runs agree."""
    if any(run.outcome != PASS for run in local):
        return IRREPRODUCIBLE
    if any(not close(local[0].numbers, other.numbers) for other in local):
        return IRREPRODUCIBLE
    if all(run.outcome == PASS and close(local[0].numbers, run.numbers) for run in remote[-1:]):
        return NUMBERS
    return DIFFERS


def close(a: list[float], b: list[float]) -> bool:
    """Tells whether two lists of sums agree within the tolerances; two NaN agree."""
    return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))


def _close(a: float, b: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return math.isclose(a, b, rel_tol=NUMBER_TOLERANCE_RELATIVE, abs_tol=NUMBER_TOLERANCE_ABSOLUTE)


def counts(verdicts: dict[str, str]) -> dict[str, int]:
    """Counts the cases of each verdict, in a fixed order."""
    counted = Counter(verdicts.values())
    return {verdict: counted[verdict] for verdict in VERDICTS if counted[verdict]}
