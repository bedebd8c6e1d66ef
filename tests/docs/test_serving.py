"""Commands of the serving environment, against the sources of the plugin: this environment has no vLLM."""

import json
import re
import shlex
import tomllib
from urllib.parse import urlparse

import pytest

from clefquant.export.plugin import PLUGIN_FOLDER

from .conftest import PAGES, README, ROOT, commands
from .test_commands import SERVING

PLUGIN = ROOT / "plugins" / "clef_vllm"
COMMANDS = sorted({c for page in (README, *PAGES) for c in commands(page) if c.split()[0] in SERVING})


def test_there_are_some_of_each():
    assert {command.split()[0] for command in COMMANDS} == set(SERVING)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_serving_environment(command, monkeypatch):
    monkeypatch.syspath_prepend(str(PLUGIN))
    program, *arguments = shlex.split(command)
    {"pip": pip, "clef-systemone": clef_systemone, "curl": curl}[program](arguments)


def pip(arguments: list[str]) -> None:
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    install, what = arguments
    folder, extra = re.fullmatch(r"RELEASE/(\w+)\[(\w+)\]", what).groups()
    assert (install, folder) == ("install", PLUGIN_FOLDER)
    assert extra in project["optional-dependencies"]
    assert "clef-systemone" in project["scripts"]


def clef_systemone(arguments: list[str]) -> None:
    from clef_vllm.server.flags import parser

    parser().parse_args(arguments)  # exits when a flag is not the server's


def curl(arguments: list[str]) -> None:
    from clef_vllm.server.limits import ServerLimits

    url, *options = arguments
    posts = "-d" in options
    routes = re.findall(r'@app\.(get|post)\("([^"]+)"', (PLUGIN / "clef_vllm" / "server" / "app.py").read_text())
    assert ("post" if posts else "get", urlparse(url).path) in routes
    if posts:
        header, content_type, data, body = options
        assert (header, content_type, data) == ("-H", "Content-Type: application/json", "-d")
        ServerLimits.parse("", strict=True).check(json.loads(body))
