"""Points that fill the unit cube evenly: a scrambled Sobol sequence.

In base 2 the digits of point i are a linear map of the digits of i, one matrix per dimension::

    x_i = shift xor (V g),    g = the digits of i xor (i >> 1)   (the Gray code of i)

The columns of V follow from a primitive polynomial and a few starting numbers (Joe and Kuo, 2008).
A random lower triangular matrix times V and a random ``shift`` make the points uniform without
spoiling how evenly they are spread (Matousek, 1998).

SciPy has the same sequence, point for point. It takes longer to load than a fit takes to run,
though, so it is used only for dimensions beyond this table.
"""

import numpy as np
from jaxtyping import Float

DIGITS = 30
"""Binary digits of every coordinate."""
STARTS: tuple[tuple[int, ...], ...] = (
    (3, 1),
    (7, 1, 3),
    (11, 1, 3, 1),
    (13, 1, 1, 1),
    (19, 1, 1, 3, 3),
    (25, 1, 3, 5, 13),
    (37, 1, 1, 5, 5, 17),
    (41, 1, 1, 5, 5, 5),
    (47, 1, 1, 7, 11, 19),
    (55, 1, 1, 5, 1, 1),
    (59, 1, 1, 1, 3, 11),
    (61, 1, 3, 5, 5, 31),
    (67, 1, 3, 3, 9, 7, 49),
    (91, 1, 1, 1, 15, 21, 21),
    (97, 1, 3, 1, 13, 27, 49),
    (103, 1, 1, 1, 15, 7, 5),
    (109, 1, 3, 1, 15, 13, 25),
    (115, 1, 1, 5, 5, 19, 61),
    (131, 1, 3, 7, 11, 23, 15, 103),
    (137, 1, 3, 7, 13, 13, 15, 69),
    (143, 1, 1, 3, 13, 7, 35, 63),
    (145, 1, 3, 5, 9, 1, 25, 53),
    (157, 1, 3, 1, 13, 9, 35, 107),
)
"""The polynomial of each dimension after the first, as an integer whose binary digits are its
coefficients, and the starting numbers of its recursion."""


def sobol(
    dim: int, log2_points: int, rng: np.random.Generator
) -> Float[np.ndarray, "points {dim}"]:
    """Return 2^log2_points points of the half-open unit cube [0, 1)^dim."""
    if dim > len(STARTS) + 1:
        from scipy.stats.qmc import Sobol  # slow to load, and rarely needed

        return Sobol(dim, rng=rng).random_base2(log2_points)
    (rng,) = rng.spawn(1)  # as SciPy does: the caller's generator draws nothing for this
    place = np.arange(DIGITS, dtype=np.uint32)
    coins = rng.integers(2, size=(dim, DIGITS), dtype=np.uint32)
    shift = (coins << place).sum(axis=1, dtype=np.uint32)
    lower = np.tril(rng.integers(2, size=(dim, DIGITS, DIGITS), dtype=np.uint32))
    lower[:, place, place] = 1
    digits = _columns(dim)[:, None, :] >> place[::-1, None] & 1  # (dim, digit, column)
    scrambled = (lower @ digits & 1).astype(np.uint32)
    columns = (scrambled << place[::-1, None]).sum(axis=1, dtype=np.uint32)
    points = shift[None]
    for column in columns.T[:log2_points]:
        # The Gray codes of the next 2^k numbers are those of the last 2^k backwards, with digit k.
        points = np.concatenate([points, points[::-1] ^ column])
    return points / 2.0**DIGITS


def _columns(dim: int) -> np.ndarray:
    """Return the columns of V of each dimension as integers of DIGITS binary digits."""
    columns = np.empty((dim, DIGITS), np.uint32)
    columns[0] = 1
    for row, (polynomial, *starts) in zip(columns[1:], STARTS, strict=False):
        degree = len(starts)
        row[:degree] = starts
        for j in range(degree, DIGITS):
            row[j] = row[j - degree]
            for k in range(1, degree + 1):
                if polynomial >> degree - k & 1:
                    row[j] ^= row[j - k] << np.uint32(k)
    return columns << np.arange(DIGITS, dtype=np.uint32)[::-1]
