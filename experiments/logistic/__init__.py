"""l2-regularised logistic regression on sparse rows: convex, exact, with a minimum that is known.

>>> problem = Logistic.load("w8a")                          # doctest: +SKIP
>>> problem.value(numpy.zeros(problem.features))            # doctest: +SKIP
0.6931471805599453
>>> minimise(problem).value                                 # doctest: +SKIP
0.12618068651051...
"""

from __future__ import annotations

from experiments.logistic.libsvm import Examples, find, read
from experiments.logistic.newton import Minimum, known_minimum, minimise
from experiments.logistic.problem import Logistic

__all__ = ["Examples", "Logistic", "Minimum", "find", "known_minimum", "minimise", "read"]
