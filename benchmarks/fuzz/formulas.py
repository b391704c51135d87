"""Formulas: sound ones, ones without end, and strings of tokens that hardly make sense."""

import numpy as np
import pandas as pd

import nghvi
from benchmarks.fuzz.judge import ANY, FIT, REFUSE, Case, Checked, fit_checked

GROUPS, SIZE = 8, 5
SOUND = (
    "y ~ x + (1 | g)",
    "y ~ x + z + (1 | g)",
    "y ~ x * s + (1 | g)",
    "y ~ 0 + x + (1 | g)",
    "y ~ x + (1 + x | g)",
    "y ~ x + (x || g)",
    "y ~ poly(x, 2) + (1 | g)",
    "y ~ bs(x, df=4) + (1 | g)",
    "y ~ np.exp(x) + (1 | g)",
    "y ~ I(x**2) + (1 | g)",
    "y ~ C(k) + (1 | g)",
    "y ~ x + offset(z) + (1 | g)",
    "log(p) ~ x + (1 | g)",
    "y ~ `odd name` + (1 | g)",
    "y ~ (x + z)^2 + (1 | g)",
    "y ~ x + s:z + (1 | g)",
    "y ~ 1",
    "y ~ center(x) + scale(z)",
)
ENDLESS = (
    "y ~ I(9**9**9)",
    "y ~ x + I(9**9**9) + (1 | g)",
    "y ~ bs(x, df=10**8)",
    "y ~ cr(x, df=10**8)",
    "y ~ (x + z)**1000",
    "y ~ x^99999999",
    "y ~ hashed(s, levels=10**9)",
    "y ~ " + "*".join(f"I(x + {i})" for i in range(18)),
    "y ~ x + (" + "*".join(f"I(x + {i})" for i in range(18)) + " | g)",
    "y ~ " + "/".join(f"I(x + {i})" for i in range(400)),
    "y ~ I(" + "-" * 5000 + "x)",
    "y ~ " + "+".join(f"I(x*{i})" for i in range(20_000)),
    "y ~ poly(x, 10**9)",
    "y ~ I(1 << 10**10)",
    "y ~ I(x * 'a' * 10**9)",
    "y ~ {[0] * 10**10}",
    "y ~ np.full(10**10, 1.0)",
    "y ~ x + offset(9**9**9)",
    "y ~ ((x + z + s + k)^10)^10",
    "9**9**9 ~ x",
)
CODE = (
    "y ~ __import__('os').system('true')",
    "y ~ open('/etc/hosts')",
    "y ~ (lambda: x)()",
    "y ~ x.__class__",
    "y ~ [i for i in range(10**9)]",
    "y ~ np.load('x.npy')",
    "y ~ eval('x')",
    "y ~ f'{x}'",
)
TOKENS = (
    *("y", "x", "z", "s", "k", "g", "p", "`odd name`", "q", "1", "0", "2", "-1", "3.5", "'a'"),
    *("+", "-", "*", ":", "/", "**", "^", "|", "||", "~", "(", ")", "[", "]", "{", "}", ",", "."),
    *("log(", "exp(", "I(", "C(", "bs(", "poly(", "offset(", "np.", "%in%", "=", "@", "\\", "☃"),
    *(" ", "\n", "\t", "\0", "#", ";", "&", "!", "<", ">", "==", "if", "else", "not", "lambda"),
)


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(GROUPS), SIZE)
    rows = group.size
    x = rng.normal(size=rows)
    y = x + rng.normal(size=GROUPS)[group] + rng.normal(size=rows)
    columns = {"y": y, "x": x, "z": rng.normal(size=rows), "g": group, "p": np.exp(x) + 0.1}
    columns |= {"s": rng.choice(["a", "b"], rows), "k": rng.integers(1, 4, rows)}
    return pd.DataFrame(columns).assign(**{"odd name": rng.normal(size=rows)})


def cases(number: int, seed: int) -> list[Case]:
    rng = np.random.default_rng([seed, 3])
    listed = [(f, FIT) for f in SOUND] + [(f, REFUSE) for f in (*ENDLESS, *CODE)]
    listed.append(("y ~ " + "(" * 3000 + "x" + ")" * 3000, ANY))
    while len(listed) < number:
        if rng.random() < 0.5:  # nonsense
            drawn = rng.choice(len(TOKENS), rng.integers(1, 12))
            listed.append(("y ~ " + " ".join(TOKENS[i] for i in drawn), ANY))
        else:  # a sound one with a character changed
            text = list(SOUND[rng.integers(len(SOUND))])
            place = rng.integers(len(text))
            text[place] = TOKENS[rng.integers(len(TOKENS))]
            listed.append(("".join(text), ANY))
    return [_case(i, *each) for i, each in enumerate(listed[:number])]


def _case(number: int, formula: str, expects: str) -> Case:
    def run() -> Checked:
        data = frame()
        model = nghvi.mixed(formula, data)
        return fit_checked(model, data)

    return Case(f"formula-{number}", run, expects, formula[:120])
