"""A fit that is killed: ``python -m tests.storage.kill_worker DIRECTORY``."""

import sys

import nghvi
from tests.conftest import panel_frame

STEPS = 4000


def fit(checkpoint=None, **settings):
    """Effects are drawn, so that they too are part of the state."""
    panel = panel_frame()
    settings = {"method": "sg-hvi", "steps": STEPS, "random_state": 3, **settings}
    model = nghvi.MixedRegressor("g", **settings)
    return model.fit(panel[["g", "a", "b"]], panel["y"], checkpoint=checkpoint, every=0)


if __name__ == "__main__":
    fit(sys.argv[1])
