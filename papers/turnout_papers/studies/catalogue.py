"""All studies by name, in the order of the papers: every module here that has a `STUDY` is one."""

from __future__ import annotations

import importlib
import pkgutil

from turnout.errors import UserError, nearest
from turnout_papers import studies
from turnout_papers.studies.study import Study


def _found() -> dict[str, Study]:
    modules = (f"{studies.__name__}.{info.name}" for info in pkgutil.iter_modules(studies.__path__))
    listed = [getattr(importlib.import_module(name), "STUDY", None) for name in modules if name != __name__]
    found: dict[str, Study] = {}
    for study in sorted((s for s in listed if s is not None), key=_place):
        if study.name in found:
            raise ValueError(f"two studies are called {study.name!r}")
        found[study.name] = study
    return found


def _place(study: Study) -> tuple[bool, str]:
    """By paper and table; what reproduces no paper is last."""
    return not study.reproduces.startswith("paper "), study.reproduces


STUDIES = _found()


def find_study(name: str) -> Study:
    if not isinstance(name, str) or name not in STUDIES:
        raise UserError(f"there is no study {name!r}: {nearest(name, STUDIES)}")
    return STUDIES[name]
