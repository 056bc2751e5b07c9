"""Local SGD with accelerate, Hugging Face Trainer, Lightning and torchft.

Each module here needs its framework, and imports it; `import localsgd` needs none of them. In all
of them a step is one attempted `optimizer.step` of the wrapped optimizer: micro-batches that are
accumulated are no steps, and a step that a gradient scaler skips is one.
"""
