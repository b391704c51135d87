"""Draws the site's own picture: ``python docs/make_figures.py`` writes docs/figures/schools.png."""

import io
import pathlib

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

import nghvi
from nghvi import plots
from nghvi.datasets import simulate_schools
from nghvi.storage.file import replaced

TARGET = pathlib.Path(__file__).parent / "figures" / "schools.png"


def main() -> None:
    """Fit the built-in schools; slopes by school, group effects, two densities with the truth."""
    data = simulate_schools()
    model = nghvi.mixed("score ~ intake + hours + girl + (1 + intake | school)", data.frame)
    ordered = model.group_effects().sort_values("intake_mean").index
    figure, grid = plt.subplots(2, 2, figsize=(10, 6.2))
    axes = grid.ravel()
    plots.lek(model, "intake", groups=[ordered[0], "population", ordered[-1]], ax=axes[0])
    axes[0].set_title("Score of two schools and of all")
    plots.caterpillar(model, "intake", ax=axes[1])
    plots.posterior(model, ["effects_sd[intake]", "intake"], axes[2:], data.truth)
    axes[2].set_title("Sd of the slopes (dashed: truth)")
    axes[3].set_title("Average slope (dashed: truth)")
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=130, metadata={"Software": None})
    with replaced(TARGET) as file:
        file.write(drawn.getvalue())


if __name__ == "__main__":
    main()
