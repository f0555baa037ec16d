"""What the plug-in door asks for: CHECKS and REMEDIES."""

from __future__ import annotations

from llmdoctor_core.check import checks_in

from . import rules

CHECKS = checks_in(rules)
REMEDIES = (rules.ask_for_api_key,)
