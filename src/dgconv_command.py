"""What the command ``dgconv`` starts. It is outside the package because importing that takes torch's seconds."""

import signal
import sys
from importlib.metadata import version


def main() -> None:
    """Ctrl-C during the imports ends the process at once: thrown into the middle of one, it fails in odd ways."""
    if sys.argv[1:] == ["--version"]:
        print("dgconv", version("dgconv"))
        return
    is_pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # and not ignored, as by nohup
    if is_pythons:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dgconv.cli import main as run

    if is_pythons:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
