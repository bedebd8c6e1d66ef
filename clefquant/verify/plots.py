"""The report's charts, from the report's value."""

from collections.abc import Mapping, Sequence
from typing import Any

from clefquant.verify import svg
from clefquant.verify.svg import Series
from clefquant.verify.sweep_plots import sweep_charts

Report = Mapping[str, Any]
_BLOCKS = ("linear_attn", "self_attn", "mlp")
_MARKS = {"bf16": "16", "fp8": "8", "mxfp8": "8", "nvfp4": "4", "mxfp4": "4m"}


def charts(report: Report) -> dict[str, str]:
    """Name to figure; charts without data are left out."""
    tables = report["tables"]
    found = {
        "kl": _kl(report["plots"]["kl"]),
        "margins": _shares(
            tables["margins"], "Same answer by BF16 margin", "Share of answers that stay the same, by BF16's lead."
        ),
        "groups": _shares(
            tables["groups"],
            "Same answer by group",
            "Share of answers that stay the same, by group, with 95 % intervals.",
        ),
        "lengths": _shares(
            tables["lengths"],
            "Same answer by length",
            "Share of answers that stay the same, by prompt length in tokens.",
        ),
        "reliability": _reliability(report["plots"]["reliability"]),
        "layout": _layout(report["candidate"]["layout"]),
        **sweep_charts(report["plots"]["frontier"], _here(report)),
    }
    return {name: figure for name, figure in found.items() if figure}


def _kl(histogram: Mapping[str, Any]) -> str:
    edges, counts = histogram["edges"], histogram["counts"]
    tips = [f"below {edges[0]:.0e}: {counts[0]}"]
    tips += [
        f"{low:.1e} to {high:.1e}: {count}" for low, high, count in zip(edges, edges[1:], counts[1:-1], strict=False)
    ]
    tips.append(f"above {edges[-1]:.0e}: {counts[-1]}")
    decades = [f"1e{round(step / 2 - 8)}" if step % 2 == 0 else "" for step in range(len(edges))]
    labels = ["less", *decades]
    body = svg.columns(
        [float(count) for count in counts],
        labels,
        tips,
        "KL of a question, nats (each bar half a decade; the label is its lower end)",
    )
    return svg.figure(
        body,
        240,
        "Histogram of KL per question",
        "How much each answer moved. Bars to the left are answers that hardly moved.",
    )


def _shares(rows: Sequence[Mapping[str, Any]], label: str, caption: str) -> str:
    known = [row for row in rows if row["agreement"]]
    if not known:
        return ""
    names = [f"{row['name']} ({row['questions']:,})" for row in known]
    value, low, high = ([100 * row["agreement"][end] for row in known] for end in ("value", "low", "high"))
    start = max(0.0, 10 * (min(low) // 10)) if min(low) < 99 else 98.0
    body, height = svg.rows(names, value, low, high, (start, 100.0), " %")
    note = f" The axis starts at {start:.0f} %." if start else ""
    return svg.figure(body, height, label, caption + note)


def _reliability(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    if not curves["reference"] and not curves["candidate"]:
        return ""
    series = [Series("right as often as confident", [(0, 0), (1, 1)], "ideal")]
    for key, name, style in (("reference", "BF16", "a"), ("candidate", "this release", "b")):
        series.append(Series(name, [(point["confidence"], point["accuracy"]) for point in curves[key]], style))
    body = svg.lines(series, (0, 1), (0, 1), ("confidence of the chosen answer", "share that is right"))
    return svg.figure(
        body,
        320,
        "Reliability curves",
        "Whether confidence means what it says, before and after. On the dashed line it does.",
    )


def _layout(units: Mapping[str, str] | None) -> str:
    if not units:
        return ""
    layers = sorted({int(name.split(".")[1]) for name in units})
    rows = []
    for block in _BLOCKS:
        cells = [
            (f"f-{fmt}", _MARKS.get(fmt, fmt[:2]), f"{name}: {fmt}")
            if (fmt := units.get(name := f"layers.{layer}.{block}"))
            else ("", "", "")
            for layer in layers
        ]
        rows.append((block.replace("linear_attn", "GDN").replace("self_attn", "attention"), cells))
    body, height = svg.grid(rows)
    used = ", ".join(f"{_MARKS.get(fmt, fmt)} = {fmt}" for fmt in dict.fromkeys(units.values()))
    return svg.figure(body, height, "Layout: format of every unit", f"Format of every unit, first layer left ({used}).")


def _here(report: Report) -> tuple[float, float] | None:
    """Size in MB, head included, and KL of the release."""
    size = report["candidate"]["bytes"] + report["candidate"]["head_bytes"]
    kl = report["tables"]["all"][0]["kl"]
    return (size / 1e6, kl["value"]) if kl else None
