"""Pages of the reference, made from the code while the site is built: nothing is committed that could go stale.

mkdocs calls the two ``on_…`` functions (``hooks`` in mkdocs.yml). A generated page needs no file; a marker such as
``<!-- server flags -->`` in a written page is replaced by a table.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are generated whole."""
    sys.path[:0] = [
        str(ROOT),
        str(ROOT / "plugins" / "clef_vllm"),
    ]  # here: mkdocs takes back what a hook does on import
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, f"reference/{name}", content=page()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the tables that a written page asks for."""
    for marker, made in TABLES.items():
        markdown = markdown.replace(f"<!-- {marker} -->", made())
    return markdown


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars and line breaks in cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )


def commands() -> str:
    """One section per command of the Typer application: help, arguments, options."""
    import typer.main

    from clefquant.cli.app import COMMANDS, app

    root: Any = typer.main.get_command(app)
    parts = ["# Commands\n", f"{root.help}\n", "Every command takes these options:\n", _options(root)]
    for name in COMMANDS:
        command = root.commands[name]
        about, _, example = command.help.partition("Example: ")
        example = " ".join(example.split()).strip("`")
        names = [p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument"]
        parts += [f"## {name}\n", about, f"    clefquant {' '.join([name, *names])} [OPTIONS]\n"]
        parts += [_options(command), f"\nExample: `{example}`\n"]
    parts.append(
        "## Exit codes\n\n0 done, 1 a check or gate failed, 2 wrong usage or input, 3 something is missing on this "
        "machine, 130 interrupted."
    )
    return "\n".join(parts)


def _options(command: Any) -> str:
    rows = []
    for option in command.params:
        if option.hidden or option.name in ("install_completion", "show_completion", "help"):
            continue
        names = [*option.opts, *option.secondary_opts]
        shown = option.metavar or option.name.upper() if option.param_type_name == "argument" else ", ".join(names)
        rows.append((f"`{shown}`", option.help or "", _default(option)))
    return table(("option", "meaning", "default"), rows) + "\n"


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if isinstance(option.show_default, str):
        return option.show_default
    return _value(option.default)


def _value(default: Any) -> str:
    return "" if default is None or default is False or default == "" else f"`{default}`"


def formats() -> str:
    """The table of formats."""
    from clefquant.recipes.formats import BF16, FORMATS
    from clefquant.release.units import Linear

    linear = Linear("mlp.down_proj", 4096, 12288)
    rows = [
        (
            f"`{one.name}`",
            one.element.upper(),
            _share(one),
            one.scale_dtype + (" + F32 per tensor" if one.global_scale else "") or "–",
            one.input or "not rounded",
            "yes" if one.static_input else "no",
            f"{8 * one.tensor_bytes(linear) / linear.weights:.2f}",
        )
        for one in (BF16, *FORMATS)
    ]
    names = [(f"`{one.name}`", f"`{one.preset}`", f"`{one.ct_format}`", one.served) for one in FORMATS]
    header = ("name", "weight", "scales", "stored as", "input is rounded", "calibration needed", "bits a weight")
    return (
        "# Formats\n\nWhat a unit can be stored in. Bits a weight count the scales, for Clef-Flash's "
        f"`down_proj` ({linear.out_features} × {linear.in_features}). What the names mean is in "
        "[the explanation](../explanation/formats.md).\n\n"
        + table(header, rows)
        + "\n\n## Names elsewhere, and hardware\n\n"
        + table(("here", "llm-compressor's scheme", "`format` in config.json", "runs on"), names)
    )


def _share(one: Any) -> str:
    """Which weights of a format share a scale."""
    if one.group:
        return f"one per {one.group} weights"
    if one.block:
        return f"one per {one.block}×{one.block} square"
    return "one per row" if one.scale_dtype else "–"


def configuration() -> str:
    """The fields of a run's YAML, from its JSON Schema."""
    schema = json.loads((ROOT / "configs" / "run.schema.json").read_text())
    parts = ["# Configuration of a run\n", "What `clefquant run CONFIG` reads. An unknown field is an error.\n"]
    parts += [f"{_prose(schema['description'])}\n", _fields(schema)]
    parts += [
        "\nEditors check a configuration while you type when its first line is\n\n"
        "    # yaml-language-server: $schema=run.schema.json\n"
    ]
    for name, section in schema["$defs"].items():
        parts += [f"\n## {name}\n", f"{_prose(section['description'])}\n", _fields(section)]
    return "\n".join(parts)


def _fields(section: Any) -> str:
    rows = []
    for name, field in section["properties"].items():
        needed = name in section.get("required", ())
        default = (
            "required" if needed else "" if field.get("default") in (None, {}) else f"`{json.dumps(field['default'])}`"
        )
        rows.append((f"`{name}`", _type(field), _prose(field.get("description", "")), default))
    return table(("field", "type", "meaning", "default"), rows)


def _type(field: Any) -> str:
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(_type(one) for one in field["anyOf"] if one.get("type") != "null")
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    return f"list of {_type(field['items'])}" if field["type"] == "array" else str(field["type"])


def _prose(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def server_flags() -> str:
    """The server's own flags, by group."""
    from clef_vllm.server.flags import parser

    parts = []
    for group in parser()._action_groups[1:]:
        rows = [
            (
                f"`{', '.join(a.option_strings)}`",
                a.help or "",
                "required" if a.required else _value(a.default),
            )
            for a in group._group_actions
            if a.dest not in ("help", "limits")
        ]
        parts.append(table((group.title or "", "meaning", "default"), rows))
    return "\n\n".join(parts)


def server_limits() -> str:
    """What ``--limits`` can change."""
    from clef_vllm.server.limits import NAMES

    return table(("name", "default", "limits"), [(f"`{name}`", str(d), text) for name, (d, text) in NAMES.items()])


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands,
    "formats.md": formats,
    "configuration.md": configuration,
}
TABLES: dict[str, Callable[[], str]] = {"server flags": server_flags, "server limits": server_limits}
