"""Checks of vectors: values that no engine can search."""

from __future__ import annotations

import numpy as np

from refill.corpora.errors import CorpusError
from refill.corpora.sources import Float32, Source
from refill.oracle.exact import LARGEST_NORM, SMALLEST_NORM, usable_norms


def check_vectors(vectors: Float32, first: int, distance: str, name: str, source: Source) -> None:
    """Check a batch of vectors, float32, shape (n, dimension), that starts at row `first`.

    Raises:
        CorpusError: a value that is NaN or infinite (or too large for float32), a zero vector
            under Cosine, or a norm that float32 cannot square.
    """
    # A sum is finite only if all its terms are: one pass, no array of flags.
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    usable = usable_norms(norms, distance)
    if usable.all():
        return
    place = int(np.argmin(usable))
    row, vector = first + place, vectors[place]
    if not np.isfinite(vector).all():
        component = int(np.argmin(np.isfinite(vector)))
        problem = (
            f"row {row} has the value {vector[component]} at component {component} "
            "(NaN, infinite, or too large for float32)"
        )
    elif not vector.any():
        problem = f"row {row} is a zero vector, whose cosine is not defined"
    else:
        problem = (
            f"row {row} has the norm {np.linalg.norm(vector.astype(np.float64)):.3g}, outside of "
            f"{SMALLEST_NORM:g} to {LARGEST_NORM:g}, what float32 can square"
        )
    raise CorpusError(
        name, source.file, source.key, problem, "leave such rows out of the file, or mend them"
    )
