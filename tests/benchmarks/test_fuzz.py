"""Strange input: a dozen cases of ``benchmarks.fuzz``, and that its judge sees what it must."""

import sys
import warnings

import numpy as np
import pytest

import nghvi
from benchmarks.fuzz.__main__ import all_cases
from benchmarks.fuzz.judge import BAD, FIT, REFUSE, Case, Checked, Oracle, judge
from benchmarks.fuzz.pool import Worker

CASES = {case.name: case for case in all_cases(0)}
CHOSEN = [
    *("Int64", "text numbers", "y * 1e-8 + 1", "NUL groups", "masked, one hidden", "shuffled"),
    *("y ~ I(9**9**9)", "y ~ x^99999999", "y ~ __import__('os').system('true')"),
    *("truncated", "value", "pipe"),
]


@pytest.mark.parametrize("described", CHOSEN)
def test_strange_input_gets_an_answer(described):
    case = next(c for c in CASES.values() if c.described.startswith(described))
    found = judge(case)
    assert found.outcome not in BAD, found


def result(numbers=1.0, problems=(), admitted=False):
    return lambda: Checked({"summary": np.array(numbers)}, list(problems), admitted)


def raising(error):
    def run():
        raise error

    return run


def warned():
    warnings.warn("the column is constant", nghvi.DataWarning, stacklevel=1)
    return Checked({}, [])


REFUSED = nghvi.DataError("column 'x' is not numeric: drop it.")


@pytest.mark.parametrize(
    ("run", "expects", "outcome"),
    [
        (result(), FIT, "right"),
        (result(), REFUSE, "wrong"),
        (result(np.nan), FIT, "silent non-finite"),
        (result(np.nan, admitted=True), FIT, "warning"),
        (result(problems=["far away"]), FIT, "wrong"),
        (result(problems=["far away"], admitted=True), FIT, "warning"),
        (warned, FIT, "warning"),
        (raising(REFUSED), REFUSE, "clear error"),
        (raising(REFUSED), FIT, "wrong"),
        (raising(nghvi.DataError("no")), REFUSE, "wrong"),
        (raising(ValueError("something")), REFUSE, "raw traceback"),
        (raising(MemoryError()), REFUSE, "raw traceback"),
    ],
)
def test_the_judge_tells_outcomes_apart(run, expects, outcome):
    assert judge(Case("one", run, expects)).outcome == outcome


def test_the_oracle_is_least_squares_without_groups_and_has_no_scale():
    rng = np.random.default_rng(0)
    x, group = rng.normal(size=(60, 2)), np.repeat(np.arange(12), 5)
    y = x @ [1.0, -2.0] + rng.normal(size=60)
    alone = Oracle.of(x, y, np.arange(60), ("a", "b"))
    expected = np.linalg.lstsq(np.column_stack([np.ones(60), x]), y, rcond=None)[0]
    np.testing.assert_allclose(alone.coef, expected[1:], rtol=1e-6)
    plain, scaled = (Oracle.of(x * f, y * f, group, ("a", "b")) for f in (1.0, 1e-120))
    np.testing.assert_allclose(plain.coef, scaled.coef, rtol=1e-9)


def test_a_process_that_hangs_or_dies_is_counted_and_replaced():
    sleeping = "for line in sys.stdin: time.sleep(60)"
    dying = "sys.stdin.readline(); raise SystemExit(1)"
    for behaviour, outcome in ((sleeping, "hang"), (dying, "raw traceback")):
        code = f"import sys, time; print('ready', flush=True)\n{behaviour}"
        worker = Worker([sys.executable, "-c", code])
        try:
            for _ in range(2):
                found = worker.ask(Case("one", result()), 0.3 if outcome == "hang" else 30)
                assert found.outcome == outcome
        finally:
            worker.end()


def test_cases_are_those_of_their_seed():
    again = {case.name: case.described for case in all_cases(0)}
    assert again == {name: case.described for name, case in CASES.items()}
    assert again != {case.name: case.described for case in all_cases(1)}
    assert len(CASES) == 700
