"""The command that opens a run to look at, image by image."""

import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from ..errors import visible
from ..files import check_file
from ._device import find_device
from ._output import console

if TYPE_CHECKING:
    from ..explore.session import Session

OFFERED, OFFERED_IN_A_FILE = 40, 8  # test images, where none are named


def explore(
    run: Positional[Path],
    data_dir: str | None = None,
    images: tuple[int, ...] = (),
    rates: tuple[float, ...] = (),
    port: int = 0,
    open: bool = False,
    out: Path | None = None,
) -> None:
    """Look inside a run, image by image: a local page with what it predicts, what that costs, what each head chose.

    Args:
        run: Run folder of a network with dynamic layers, or the name of published weights.
        data_dir: Folder of the data set, if it is no longer where it was.
        images: Numbers of the test images to offer; default some from all over the test set.
        rates: Pruning rates to choose from; default 0 to 0.9 in tenths. The trained one is always among them.
        port: Port of the page on this machine; 0 takes any that is free.
        open: Open the page in the browser, too.
        out: Instead of serving a page, write it to this file, with the answers for all images and rates in it.
    """
    from ..analysis.trained_run import open_runs
    from ..explore.session import RATES, Session

    if out:
        check_file(out)
    (folder,) = open_runs([run], data_dir, find_device())
    session = Session(folder, rates or RATES)
    ids = [str(number) for number in dict.fromkeys(images)]
    if out:
        _write(session, ids or session.images.spread(OFFERED_IN_A_FILE), out)
    else:
        _serve(session, ids or session.images.spread(OFFERED), port, open)


def _write(session: "Session", ids: list[str], out: Path) -> None:
    from ..explore.page import static_page
    from ..files import write_atomically

    def tell(rate: float) -> None:
        console.print(f"{len(ids)} image{'s' * (len(ids) != 1)} at pruning rate {rate:.4g}", highlight=False)

    write_atomically(out, static_page(session, ids, tell).encode())
    console.print(f"{out}: opens in any browser", soft_wrap=True, markup=False, highlight=False)


def _serve(session: "Session", ids: list[str], port: int, open: bool) -> None:
    import torch

    from ..explore.server import ExploreServer

    torch.set_num_threads(max(1, torch.get_num_threads() // 2))  # the rest prepares rates in the background
    stop = threading.Event()
    with ExploreServer(session, ids, port) as server:
        preparing = threading.Thread(target=session.prepare_all, args=(stop,), daemon=True)
        preparing.start()
        print(f"{visible(session.run.name)} is at {server.url} (Ctrl-C ends it)", flush=True)
        if open:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\ndgconv: the page is closed", flush=True)
        finally:
            stop.set()
            preparing.join()  # torch does not survive being cut off
