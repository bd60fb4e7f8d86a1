"""Write what other exporters need to make the peers of `tools/bench_set.py --peers FOLDER`: checkpoints and configs.

tools/bench_peers.py FOLDER [--only PATTERN] [--run COMMAND ...]. For each model of the libraries in the set, with the
weights that are measured, `Name.pth` and `Name.py`, and a line `CONFIG CHECKPOINT HEIGHT WIDTH FILE` of what is to be
made of them; COMMAND is called with these.
"""

import argparse
import fnmatch
import shlex
import subprocess
import sys
from pathlib import Path

import torch
from bench_set import SET, Model, peer_file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('folder', type=Path)
    parser.add_argument('--only', metavar='PATTERN', default='*', help="of names, e.g. 'Mask*'")
    parser.add_argument(
        '--run',
        metavar='COMMAND',
        nargs=argparse.REMAINDER,
        default=[],
        help='last option: what exports one, e.g. the python of another environment and a script',
    )
    args = parser.parse_args()

    args.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, config, options, shape in SET:
        if isinstance(options, str) or not fnmatch.fnmatch(name, args.only):
            continue
        model = Model(config, options, shape)
        written, checkpoint, file = (peer_file(args.folder, name, suffix) for suffix in ('.py', '.pth', '.onnx'))
        torch.save({'state_dict': model.task.model.state_dict(), 'meta': {}}, checkpoint)
        model.loaded.cfg.dump(str(written))
        command = [*args.run, *map(str, (written, checkpoint, *shape, file))]
        print(shlex.join(command), flush=True)
        if args.run:
            failed += subprocess.run(command, check=False).returncode != 0
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
