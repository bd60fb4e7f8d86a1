"""Export the libraries' own configs with calibrated weights and compare: tools/zoo.py [--only PATTERN] [--jobs N]

Writes docs/zoo.json after every config and docs/zoo.md from it. Configs that docs/zoo.json already has are not run
again; --again runs them.
"""

import argparse
import fnmatch
import json
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a source tree that is not installed

from rich.progress import Progress  # noqa: E402

from mmdeploy_lite.testing.zoo import TRACER, read_list, run_in_process  # noqa: E402
from mmdeploy_lite.testing.zoo_table import SECOND, merged, with_second, write_table  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--only', metavar='PATTERN', default='*', help="of config names, e.g. 'mmdet::rtmdet/*'")
    parser.add_argument('--jobs', type=int, default=1, help='processes at once (default: 1)')
    parser.add_argument('--again', action='store_true', help='also run what docs/zoo.json already has')
    parser.add_argument('--seconds', type=int, default=900, help='time limit of one config (default: 900)')
    parser.add_argument(
        '--exporter',
        choices=('torchscript', SECOND),
        default='torchscript',
        help='torch_export: of the configs that the other one has made, beside it',
    )
    parser.add_argument('--fixed', action='store_true', help='files of one size; else of any where the model allows it')
    args = parser.parse_args()
    lists = ROOT / 'tools' / 'zoo_configs'
    configs = read_list(lists / 'detection.txt', 'mmdet') + read_list(lists / 'segmentation.txt', 'mmseg')
    path = ROOT / 'docs' / 'zoo.json'
    entries = json.loads(path.read_text(encoding='utf-8')) if path.is_file() else []
    second = args.exporter == SECOND
    known = set() if args.again else {entry['config'] for entry in entries if not second or SECOND in entry}
    if second:  # what PyTorch cannot run, or the other refuses, says nothing about this one
        known |= set(configs) - {entry['config'] for entry in entries if 'nodes' in entry}
    exporter = 'TorchExportExporter' if second else TRACER
    wanted = [name for name in configs if fnmatch.fnmatch(name, args.only) and name not in known]
    with Progress() as progress, ThreadPoolExecutor(args.jobs) as pool:
        bar = progress.add_task('zoo', total=len(wanted))
        futures = [pool.submit(run_in_process, name, args.seconds, exporter, args.fixed) for name in wanted]
        for future in as_completed(futures):
            entry = future.result()
            entries = (with_second if second else merged)(entries, entry)
            path.write_text(json.dumps(entries, indent=1) + '\n', encoding='utf-8')
            write_table(entries, path.with_suffix('.md'), len(configs))
            progress.console.print(
                f'{entry["status"]:<14} {entry["config"]}  {entry.get("note", "")[:120]}', highlight=False
            )
            progress.advance(bar)
    equal = sum(entry['equal'] for entry in entries)
    print(f'{equal} of {len(entries)} equal; see docs/zoo.md')
    return 0


if __name__ == '__main__':
    sys.exit(main())
