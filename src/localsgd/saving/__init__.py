"""State that several workers save together: trees of tensors, and the folder they are kept in.

It knows no models and no optimizers. `localsgd.save` and `localsgd.load` are built on it.
"""
