"""``report.html`` and ``compare.html``: one file each, nothing fetched, made from reports' values by templates beside
this file."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from clefquant.release.artefact import canonical_json
from clefquant.verify import words
from clefquant.verify.plots import charts

TEMPLATES = Path(__file__).with_name("templates")


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # record texts come from anywhere: everything is escaped unless a template says otherwise
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "share": words.share,
        "small": words.small,
        "interval": words.interval,
        "engine": words.engine,
        "points": _points,
        "size": size,
        "sort_value": _sort_value,
        "plain": _plain,
    }
    return environment


def html(report: Mapping[str, Any]) -> str:
    """The page of one report."""
    page: str = _environment().get_template("report.html.j2").render(report=report, charts=charts(report), **_assets())
    return page


def comparison_html(value: Mapping[str, Any]) -> str:
    """The page of several reports side by side."""
    page: str = _environment().get_template("compare.html.j2").render(value=value, **_assets())
    return page


def _assets() -> dict[str, str]:
    return {
        name: (TEMPLATES / file).read_text(encoding="utf-8")
        for name, file in (("style", "page.css"), ("script", "page.js"))
    }


def _points(figure: Mapping[str, float] | None) -> str:
    """A change of a share with its interval, in points."""
    if figure is None:
        return "–"
    return f"{100 * figure['value']:+.1f} ({100 * figure['low']:+.1f} to {100 * figure['high']:+.1f})"


def size(count: int) -> str:
    """Bytes in the unit people say."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            return f"{count / limit:,.1f} {unit}"
    return f"{count} bytes"


def _sort_value(figure: Any) -> str:
    """What a column is sorted by; undefined figures last."""
    value = figure["value"] if isinstance(figure, Mapping) else figure
    return "" if value is None else repr(float(value))


def _plain(value: Any) -> str:
    """Text as it is, any other JSON value compact."""
    return value if isinstance(value, str) else canonical_json(value)
