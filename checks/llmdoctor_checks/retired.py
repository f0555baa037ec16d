"""Codes that were given up. They are never used again, so that an old report keeps its meaning."""

RETIRED: dict[str, str] = {}
"""Code to the reason why it went and what took its place."""
