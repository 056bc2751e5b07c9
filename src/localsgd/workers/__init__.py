"""The workers that a process hosts, as permanent flat rows."""
