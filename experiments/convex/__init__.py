"""The convex study: logistic regression simulated exactly, with the best step size found for all.

- `setup`: what is simulated; `designs`: which of it; `stepsizes`: the two families of the paper.
- `samples`: what each worker draws; `products`: the two sparse products of a local step.
- `simulation`: K workers x R runs at once; `plain`: the same as plain loops, to test against.
- `objective`: f, and which points are proven to lie above a target.
- `race`: step sizes until the best is known; `search`: the paper's search; `store`: runs kept.
- `study`: all of it on a data set; `tables`, `claims`, `figures`, `maps`, `report`: what becomes of
it.
"""
