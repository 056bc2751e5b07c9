"""The paper's cost of communication beside the models', as tables.

`python -m experiments.cost_model` prints those of docs/cost-model.md.
"""
