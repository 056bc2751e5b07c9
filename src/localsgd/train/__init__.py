"""The trainer: a run from its configuration to its records. `import localsgd` does not load it."""
