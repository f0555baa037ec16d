"""The catalogue: checks by family, a page for each condition, and the log signatures of the same conditions."""
