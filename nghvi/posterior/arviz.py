"""The posterior as a labelled DataTree, for ArviZ."""

from typing import Any

import numpy as np

from nghvi.posterior.mixed import MixedPosterior


def to_datatree(posterior: MixedPosterior, draws: int, seed: int) -> Any:
    """Groups ``posterior`` and ``sample_stats``; one chain, dimensions named after the data."""
    from arviz_base import from_dict

    drawn = posterior.draws(draws, seed)
    names = posterior.names
    dims = {
        "coef": ["feature"],
        "effects_cov": ["effect", "effect_other"],
        "effects": ["group", "effect"],
    }
    values = {k: v for k, v in drawn.items() if names.effects or not k.startswith("effects")}
    tree = from_dict(
        {"posterior": {k: np.asarray(v)[None] for k, v in values.items()}},
        coords={
            "feature": list(names.features),
            "effect": list(names.effects),
            "effect_other": list(names.effects),
            "group": list(names.groups),
        },
        dims={k: v for k, v in dims.items() if k in values},
    )
    inference = posterior.inference
    tree["posterior"].attrs.update(
        inference_library="nghvi",
        elbo=inference.elbo,
        k_hat=inference.k_hat,
        converged=str(inference.converged),
        verdict=inference.verdict.sentence,
    )
    return tree
