"""JSON: the whole report as one document."""

from __future__ import annotations

import json
from collections.abc import Sequence

from llmdoctor_core.examine import Examination

from . import View
from .document import document


def render(examinations: Sequence[Examination], view: View) -> str:
    """The document, indented; never NaN or Infinity, which are no JSON."""
    text = json.dumps(document(examinations, view), ensure_ascii=False, indent=1, allow_nan=False)
    return text.encode("utf-8", "replace").decode() + "\n"  # a name from a log or a path may hold half a surrogate pair
