"""``clefquant publish``: a checked release goes to the Hub."""

from pathlib import Path
from typing import Annotated

import typer

from clefquant.cli.console import Output


def publish(
    context: typer.Context,
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="An exported release folder.", show_default=False)],
    repo: Annotated[str, typer.Option("--repo", help="Repository, ORG/NAME.", show_default=False)],
    report: Annotated[
        Path | None,
        typer.Option(help="Verify report with a passed gate. Default: in the release, or `report` beside it."),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create the repository private.")] = False,
    tag: Annotated[str | None, typer.Option("--tag", help="Tag the commit, for example v1.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and say what would be sent.")] = False,
) -> None:
    """Check the release, upload it to the Hub, verify what arrived.

    Example: `clefquant publish runs/nano-mixed/release --repo acme/nano --tag v1`
    """
    from clefquant.export.publish import publish as run

    output: Output = context.obj
    done = run(release, repo, report=report, private=private, tag=tag, dry_run=dry_run, progress=output)
    verb = "would send" if dry_run else "sent"
    output.say(f"{verb} {len(done.sent)} files ({done.bytes / 1e6:,.1f} MB), {len(done.kept)} were there already")
    if done.removed:
        output.say(f"{'would remove' if dry_run else 'removed'} {', '.join(done.removed)}")
    if done.url:
        output.say(f"{done.url}{f' at {done.tag}' if done.tag else ''}", style="bold")
    output.done(done._asdict())
