"""Try to break the package, show one table, and write docs/trust.json and docs/trust.md.

The files are written after every job; what an earlier run found in other jobs stays in them. With --missing, only those
jobs are run that docs/trust.json does not have.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a source tree that is not installed

from mmdeploy_lite.testing.trust.page import write, written  # noqa: E402
from mmdeploy_lite.testing.trust.parts import jobs, rows, run_in_process  # noqa: E402

PARTS = ('faults', 'alarms', 'ties', 'checkpoints', 'work', 'inputs', 'long', 'leaks')
DOCS = ROOT / 'docs'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--only', metavar='PART', nargs='+', choices=PARTS, help=f'some of {", ".join(PARTS)}')
    parser.add_argument('--quick', action='store_true', help='a few of everything')
    parser.add_argument('--missing', action='store_true', help='what docs/trust.json does not have')
    parser.add_argument('--jobs', metavar='N', type=int, default=2, help='processes at once (default: 2)')
    args = parser.parse_args()
    chosen = [job for job in jobs(args.quick) if args.only is None or job.part in args.only]
    if args.missing:
        chosen = [job for job in chosen if job not in written(DOCS)]
    console, found = Console(), []
    columns = TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(args.jobs) as pool:
        bar = progress.add_task('trust', total=len(chosen))
        for done in as_completed([pool.submit(run_in_process, job) for job in chosen]):
            found.append(done.result())
            words = ' '.join(map(str, [found[-1]['job'], *found[-1]['arguments']]))
            progress.console.print(f'{words}: {found[-1].get("error", "done")}', highlight=False, markup=False)
            progress.advance(bar)
            if not args.quick:
                write(found, DOCS)
    table = Table(title='trust')
    for column in ('what was tried', 'how often', 'how it ended'):
        table.add_column(column)
    for what, tried, ended, well in rows(found):
        table.add_row(what, tried, ended, style='' if well else 'bold red')
    console.print(table)
    if not args.quick:
        console.print(f'written: {DOCS / "trust.md"}', highlight=False)
    return 0 if all(well for *_, well in rows(found)) else 1


if __name__ == '__main__':
    sys.exit(main())
