"""JSON: the whole report as one document."""

from __future__ import annotations

import json

from llmdoctor_core.examine import Examination

from . import View
from .document import document


def render(examination: Examination, view: View) -> str:
    """The document, indented; never NaN or Infinity, which are no JSON."""
    return json.dumps(document(examination, view), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
