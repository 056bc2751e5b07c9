"""The paper's tables and figures, each from one command. Imports `localsgd`, never the reverse."""
