"""Probes: each observes one side of the host and answers a plain dict, a fact as JSON. Standard library and pynvml.

They import nothing of ours outside this folder and keep to the syntax of Python 3.8, because they also run alone:
``llmdoctor collector`` packs this folder into one file for a bare interpreter.
"""
