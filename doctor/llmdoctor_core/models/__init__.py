"""Reads models: from a folder, a file, the hub or its cache, or the built-in catalogue; and says what they keep."""
