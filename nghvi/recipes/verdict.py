"""Has it converged? Answered in posterior standard deviations, with a sentence.

The optimum of the ELBO is where the gradient vanishes. A natural gradient step translates what
is left of it into a displacement of each mean (in posterior sds) and a relative change of each
sd. Those are estimated from fresh draws at the final q; a fit has converged when no estimate
exceeds the tolerance by more than two standard errors, and none is lost in its noise.
"""

from typing import NamedTuple

import numpy as np

TOLERANCE = 0.05
TOO_NOISY = 5 * TOLERANCE
"""Standard error of a remaining error beyond which it says nothing."""


class Verdict(NamedTuple):
    """A judgement a person can read and a program can branch on."""

    converged: bool
    sentence: str
    mean_error: float = float("nan")
    """Largest displacement of a mean that is left, in posterior sds."""
    scale_error: float = float("nan")
    """Largest relative change of an sd that is left."""

    def __str__(self) -> str:
        return self.sentence


def judge(
    mean_errors: np.ndarray,
    scale_errors: np.ndarray,
    *,
    remedy: str,
    bad_draws: int = 0,
    tolerance: float = TOLERANCE,
) -> Verdict:
    """From remaining errors of shape (independent estimates, coordinates)."""
    mean, mean_excess, mean_noise = _largest(mean_errors)
    scale, scale_excess, scale_noise = _largest(scale_errors)
    if not (np.isfinite(mean) and np.isfinite(scale)):
        return Verdict(
            False,
            f"Not converged: the gradient is not finite at the result; {remedy}.",
            mean,
            scale,
        )
    left = (
        f"means within {_shown(mean)} posterior sd of the optimum, "
        f"sds within {_shown(100 * scale)} %"
    )
    if max(mean_excess, scale_excess) > tolerance or max(mean_noise, scale_noise) > TOO_NOISY:
        return Verdict(False, f"Not converged: {left}; {remedy}.", mean, scale)
    if bad_draws:
        left += f" ({bad_draws} draws with a non-finite density were left out)"
    return Verdict(True, f"Converged: {left}.", mean, scale)


def _largest(errors: np.ndarray) -> tuple[float, float, float]:
    """Largest absolute average, the largest part of it beyond noise, and the largest noise."""
    average = np.abs(errors.mean(axis=0))
    noise = np.zeros_like(average)
    if len(errors) > 1:
        noise = errors.std(axis=0, ddof=1) / np.sqrt(len(errors))
    return float(average.max()), float(np.max(average - 2 * noise)), float(noise.max())


def _shown(value: float) -> str:
    return f"{value:.2g}" if value >= 0.01 else "0.01"
