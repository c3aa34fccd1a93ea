"""``fedcraft watch``: the page of runs that go on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcraft.cli.console import Quiet, out_console


def watch(
    folder: Annotated[Path, typer.Argument(help="The folder of the runs.")],
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Port; 8420 or a free one if left out."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Show the report of a folder in the browser, and renew it while its runs go on.

    The page is served on this computer only (127.0.0.1) and nothing is written. The place on the
    page, the choices made on it and the opened client stay when it is renewed. Ctrl-C ends it; the
    runs are not touched. Needs the extra `report`.

    Examples:

    * `fedcraft watch runs/compare`
    * `fedcraft watch runs --port 9000`
    """
    from fedcraft.config.paths import at_home
    from fedcraft.report.watch import LOOPBACK, LivePage, serve

    live = LivePage(at_home(folder))
    console = out_console(quiet=quiet)
    with serve(live, port) as server:
        console.print(f"Watching {folder}: http://{LOOPBACK}:{server.server_address[1]}/")
        console.print("Ctrl-C ends this; the runs are not touched.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("Ended.")
