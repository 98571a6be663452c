"""Run the chains of one target, or those of the illustrations:

python workflow/nested_rhat/run.py SETTINGS NAME OUTPUT.zarr --cores 2
"""

import argparse
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from nested_rhat import files  # noqa: E402
from nested_rhat.settings import load, part  # noqa: E402
from pcv.base import devices, process  # noqa: E402
from pcv.base.errors import PcvError, nearest  # noqa: E402
from pcv.base.monitor import TO_LOG, show_messages  # noqa: E402
from pcv.compile import cache  # noqa: E402
from pcv.pipeline.storage import store  # noqa: E402


def main() -> None:
    """Errors in one line each."""
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__)
    parser.add_argument("settings", type=Path, help="such as config/nested_rhat/quick.yaml")
    parser.add_argument("name", help=f"a target of the settings, or {files.ILLUSTRATED}")
    parser.add_argument("output", type=Path)
    parser.add_argument("--cores", type=int, default=1)
    args = parser.parse_args()
    monitor = TO_LOG.of(args.name)
    show_messages()
    try:
        settings, results = load(args.settings), args.output.parents[2]
        if args.name not in (known := [files.ILLUSTRATED, *settings.targets]):
            raise PcvError(f"{args.settings}: no run '{args.name}'; {nearest(args.name, known)}")
        devices.setup(args.cores)
        cache.keep_compiled()
        from nested_rhat import chains, illustrated
        from nested_rhat.targets import TARGETS

        with process.at_once(), devices.at_work(settings.precision):
            if args.name == files.ILLUSTRATED:
                found = illustrated.illustrate(
                    settings.illustrated, settings.seed, results, monitor
                )
            else:
                example = TARGETS[args.name](results)
                runs = settings.targets[args.name]
                found = chains.run(args.name, example, runs, settings.seed, monitor)
            found.attrs |= {"device": devices.describe(), "settings": part(settings, args.name)}
        store.put(args.output, found, mode="w")
    except PcvError as error:
        sys.exit("\n".join(f"error: {line}" for line in str(error).splitlines()))


if __name__ == "__main__":
    main()
