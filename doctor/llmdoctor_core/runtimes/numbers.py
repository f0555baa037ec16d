"""What counts as a whole number in an argument or a variable."""

from __future__ import annotations

import re

WHOLE = re.compile(r"\s*[0-9]{1,18}\s*")
"""Plain digits: ``str.isdigit`` takes ``²`` too, which ``int`` does not, and ``int`` refuses thousands of digits."""
