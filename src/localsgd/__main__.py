"""`python -m localsgd` is the command line."""

from localsgd.cli import main

raise SystemExit(main())
