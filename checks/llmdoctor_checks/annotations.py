"""Python that a package evaluates at import and this interpreter cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmdoctor_core.check import check
from llmdoctor_core.facts import ImportAnnotations, Place
from llmdoctor_core.finding import Finding, fail, seen

from .tables import table


@check("PY301", "annotation-fails-at-import", remedy="postpone-annotations")
def annotation_fails_at_import(annotations: ImportAnnotations) -> Iterator[Finding]:
    """A module evaluates an annotation at import that this Python cannot evaluate."""
    for use in annotations.uses:
        evidence = (
            seen("expression", use.expression, f"{use.path}:{use.line}"),
            seen("evaluated as", use.evaluated_by, "the module's syntax tree"),
            seen("Python", annotations.python, "the target environment"),
        )
        where = Place(kind="file", name=use.path, line=use.line)
        about: dict[str, Any] = {
            "package": use.distribution or "a package",
            "expression": use.expression,
            "path": use.path,
            "line": use.line,
            "reason": use.reason,
        }
        known = next((entry for entry in table("annotation-fixes").rows if use.path.endswith(entry["path"])), None)
        if known:
            yield fail(
                "{package}: {expression} at {path}:{line} is evaluated at import, and {reason}: importing it raises "
                "TypeError, which an 'except ImportError' around it does not catch. {fix}, or run the server with a "
                "newer Python",
                evidence=evidence,
                where=where,
                fix=known["fix"],
                **about,
            )
        elif use.postponable:
            yield fail(
                "{package}: {expression} at {path}:{line} is evaluated at import, and {reason}: importing it raises "
                "TypeError. Put 'from __future__ import annotations' first in that file, install a release that does, "
                "or run the server with a newer Python",
                evidence=evidence,
                where=where,
                **about,
            )
        else:
            yield fail(
                "{package}: {expression} at {path}:{line} is evaluated at import, and {reason}. It is no annotation "
                "that could be postponed: install another release of {package}, or run the server with a newer Python",
                evidence=evidence,
                where=where,
                **about,
            )
