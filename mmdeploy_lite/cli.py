"""The command line: ``mmdeploy-lite deploy ...``, and ``tools/*.py`` with one command each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import __version__
from .errors import DeployError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: arguments; None takes those of the process.

    Returns:
        The exit code: 0 done and equal, 1 exported but not equal, 2 bad input or unsupported, 130 interrupted.
    """
    parser = argparse.ArgumentParser(
        prog='mmdeploy-lite', description='MMDetection and MMSegmentation models as one checked ONNX file.'
    )
    parser.add_argument('--version', action='version', version=f'mmdeploy_lite {__version__}')
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    argv = sys.argv[1:] if argv is None else list(argv)
    for name, (add_arguments, help_text) in _commands().items():
        command = commands.add_parser(name, help=help_text)
        if argv[:1] == [name]:  # those of the others need libraries that are not there with the runtime alone
            try:
                add_arguments(command)
            except ModuleNotFoundError as error:
                extra = 'runtime' if name == 'infer' else 'export'
                parser.error(f"'{name}' needs {error.name}: pip install 'mmdeploy_lite[{extra}]'")
    args, unknown = parser.parse_known_args(argv)
    if unknown:  # said by the command, whose usage lists its options
        commands.choices[args.command].error(f'unrecognized arguments: {" ".join(unknown)}')
    return run(args)


def _commands() -> dict[str, tuple[Callable[[argparse.ArgumentParser], None], str]]:
    return {
        'deploy': (add_deploy_arguments, 'export a model and compare the file with PyTorch'),
        'infer': (add_infer_arguments, 'run an exported file on images; needs no PyTorch'),
        'test': (add_test_arguments, "measure a file and PyTorch on the config's test dataset"),
        'benchmark': (add_benchmark_arguments, 'time a file beside PyTorch and the bare network'),
    }


def run_command(command: str, argv: Sequence[str] | None = None) -> int:
    """One command without its name: what ``tools/<command>.py`` runs."""
    return main([command, *(sys.argv[1:] if argv is None else argv)])


def run(args: argparse.Namespace) -> int:
    """Run parsed arguments; errors that a user can cause become one line on stderr."""
    try:
        return args.function(args)
    except DeployError as error:
        print(f'error: {error}', file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print('interrupted; a model.onnx of an earlier run is as it was', file=sys.stderr)
        return 130


def add_model_arguments(parser: argparse.ArgumentParser, images: str = 'the first is traced, all are compared') -> None:
    """Arguments that name a model and how it is deployed.

    Args:
        images: what becomes of the images; '' for a command without images and the size that they are brought to.
    """
    parser.add_argument(
        'config', metavar='CONFIG', help="file, or a name like 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'"
    )
    parser.add_argument('checkpoint', metavar='CHECKPOINT', help='trained weights')
    if images:
        parser.add_argument('images', metavar='IMAGE', nargs='+', help=images)
        parser.add_argument('--shape', metavar=('H', 'W'), nargs=2, help='fixed size of the input in pixels')
    parser.add_argument('--deploy-cfg', metavar='FILE', help="deploy config; the default is the task's own")
    parser.add_argument('--work-dir', metavar='DIR', help='default: work_dirs/<config name>')
    parser.add_argument('--device', default='cpu', help='that PyTorch runs on (default: cpu)')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=options_action(),
        metavar='KEY=VALUE',
        help='over the config, e.g. model.test_cfg.mode=whole',
    )
    parser.add_argument(
        '--allow-mismatch', action='store_true', help='go on with a checkpoint that does not fit the model'
    )
    parser.add_argument(
        '--unsafe-checkpoint',
        action='store_true',
        help='unpickle whatever the checkpoint holds: one from elsewhere can then run any code on this machine',
    )


def options_action() -> type[argparse.Action]:
    """mmengine's ``KEY=VALUE`` options, with a word about those that are none."""
    from mmengine.config import DictAction

    class Options(DictAction):
        def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None) -> None:
            for value in values:
                if '=' not in value.lstrip('='):
                    raise argparse.ArgumentError(self, f"'{value}' is not KEY=VALUE")
            try:
                super().__call__(parser, namespace, values, option)
            except (AssertionError, ValueError) as error:  # brackets that do not match
                raise argparse.ArgumentError(self, f'{" ".join(values)}: {error}') from None

    return Options


def add_deploy_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``deploy``."""
    add_model_arguments(parser)
    parser.add_argument(
        '--audit',
        action='store_true',
        help="first list every branch of the model's Python code on a value, with file and line; needs torch 2.9",
    )
    parser.set_defaults(function=deploy_command)


def deploy_command(args: argparse.Namespace) -> int:
    """``deploy``: progress, report, verdict, the file, and what to do next."""
    from rich.console import Console

    from .progress import Stages

    console = Console(file=sys.stdout)  # this very one: what the metrics print is caught
    if args.audit:
        print_audit(args, console)
    with Stages(console) as stages, quiet_libraries():
        with stages.stage('import'):
            from .apis import deploy
        result = deploy(
            args.config,
            args.checkpoint,
            args.images,
            shape=_shape(args.shape),
            **_options(args),
            stages=stages,
        )
    result.report.print(console)
    facts = result.report.file
    inputs = ', '.join(
        f'{entry["name"]} {"x".join(map(str, entry["shape"]))} {entry["dtype"]}' for entry in facts.inputs
    )
    console.print(
        f'file: {result.path} ({facts.bytes / 1e6:.1f} MB, {facts.nodes} nodes, opset {facts.opset})', highlight=False
    )
    if facts.data:
        console.print(f'weights: {", ".join(facts.data)} beside it; keep them together', highlight=False)
    console.print(f'inputs: {inputs}', highlight=False)
    console.print(f'pictures: {", ".join(str(path) for path in result.pictures)}', highlight=False)
    console.print(f'report: {Path(result.path).parent / "report.json"}', highlight=False)
    lowered = result.report.precision
    if lowered is not None:
        lowered.print(console)
        size = f'{lowered.file.bytes / 1e6:.1f} MB, {lowered.file.bytes / lowered.exact_bytes:.0%} of the float32 file'
        console.print(f'{lowered.type} file: {result.lowered} ({size})', highlight=False, soft_wrap=True)
    if result.equal:
        if any(check.output == 'runtime' for check in result.report.checks):
            line = f'next: mmdeploy-lite infer {result.path} {args.images[0]}'
            line += ' --backend openvino' * (result.report.backend == 'OpenVINOBackend')
            console.print(line, highlight=False, soft_wrap=True)
        named = f'{args.config} {args.checkpoint} {args.images[0]}'
        console.print(f'next: mmdeploy-lite benchmark {named} --onnx {result.path}', highlight=False, soft_wrap=True)
    return 0 if result.accepted else 1


def print_audit(args: argparse.Namespace, console: Any) -> None:
    """What :func:`mmdeploy_lite.apis.audit` finds, before anything is exported: the export may stop at it."""
    from .progress import Stages

    with Stages(console) as stages, quiet_libraries(), stages.stage('audit'):
        from .apis import audit

        found = audit(args.config, args.checkpoint, args.images[0], shape=_shape(args.shape), **_options(args))
    said = f"branches on a value in the model's code: {len(found) or 'none'}"
    console.print(said + ', each frozen as this image takes it' * bool(found), highlight=False)
    for branch in found:
        console.print(f'  {branch}', highlight=False, markup=False, soft_wrap=True)


def add_infer_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``infer``."""
    from .runtime.cli import add_infer_arguments

    add_infer_arguments(parser)


def add_benchmark_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``benchmark``."""
    add_model_arguments(parser, images='the first is timed')
    parser.add_argument('--onnx', metavar='FILE', help='an exported file; without it the model is deployed first')
    parser.add_argument(
        '--peer',
        metavar='FILE',
        nargs='+',
        default=(),
        help="other ONNX files: of this package, or with the network's normalised tensor as their one input",
    )
    parser.add_argument(
        '--threads', metavar='N', type=_positive, default=2, help='of PyTorch and ONNX Runtime (default: 2)'
    )
    parser.add_argument('--runs', metavar='N', type=_positive, default=20, help='rounds that count (default: 20)')
    parser.add_argument(
        '--metrics',
        action='store_true',
        help="also mAP or mIoU on the config's test dataset: one table of PyTorch, the file, and model.fp16.onnx and"
        ' model.int8.onnx beside it, in ONNX Runtime and OpenVINO',
    )
    parser.set_defaults(function=benchmark_command)


def benchmark_command(args: argparse.Namespace) -> int:
    """``benchmark``: a table, ``benchmark.json`` and ``benchmark.png``."""
    from rich.console import Console

    from .progress import Stages

    console = Console()
    with Stages(console) as stages, quiet_libraries():
        with stages.stage('import'):
            from .apis import benchmark
            from .benchmark.run import table
        result, folder = benchmark(
            args.config,
            args.checkpoint,
            args.images[0],
            onnx_file=args.onnx,
            peers=args.peer,
            threads=args.threads,
            runs=args.runs,
            shape=_shape(args.shape),
            **_options(args),
            stages=stages,
        )
    console.print(table(result, console.width))
    console.print(f'post-processing: {result.post_share:.1%} of the exported file', highlight=False)
    console.print(f'written: {folder / "benchmark.json"}, {folder / "benchmark.png"}', highlight=False)
    if args.metrics:
        _print_formats(args, Path(args.onnx) if args.onnx else folder / 'model.onnx')
    return 0


def _print_formats(args: argparse.Namespace, file: Path) -> None:
    """Size, accuracy, time and memory of every format that is there."""
    from rich.console import Console
    from rich.table import Table

    from .apis import compare_formats
    from .progress import Stages

    console = Console(file=sys.stdout)  # this very one: what the metrics print is caught
    named = (args.config, args.checkpoint, args.images[0], file)
    settings = dict(threads=args.threads, runs=args.runs, shape=_shape(args.shape), **_options(args))
    with Stages(console) as stages, quiet_libraries():
        result = compare_formats(*named, stages=stages, **settings)
    heading, *rows = result.cells()
    images = f'{result.images} images' if result.images else 'no metrics'
    table = Table(title=f'{images}, {result.threads} threads, medians of {result.runs} runs')
    for index, name in enumerate(heading):
        table.add_column(name, justify='right' if index else 'left')
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if result.not_measured:
        console.print(f'mAP or mIoU was not measured: {result.not_measured}', highlight=False)


def add_test_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``test``."""
    add_model_arguments(parser, images='')
    parser.add_argument('onnx', metavar='FILE', help='the exported file')
    parser.add_argument('--file-only', action='store_true', help='do not run PyTorch')
    parser.set_defaults(function=test_command)


def test_command(args: argparse.Namespace) -> int:
    """``test``: the metrics side by side, and ``evaluation.json``."""
    from rich.console import Console
    from rich.table import Table

    from .progress import Stages

    console = Console(file=sys.stdout)  # this very one: what the metrics print is caught
    with Stages(console) as stages, quiet_libraries():
        with stages.stage('import'):
            from .apis import evaluate
        result = evaluate(
            args.config,
            args.checkpoint,
            args.onnx,
            pytorch=not args.file_only,
            stages=stages,
            **_options(args),
        )
    size = f', all brought to {result.shape[0]} x {result.shape[1]}' if result.shape else ''
    table = Table(title=f'{result.images} images{size}')
    table.add_column('metric')
    for name in ('PyTorch', 'file')[args.file_only :]:
        table.add_column(name, justify='right')
    for name, value in result.file.items():
        pair = [f'{result.pytorch[name]:.4f}'] if result.pytorch else []
        table.add_row(name, *pair, f'{value:.4f}', style='red' if name in result.differing else '')
    console.print(table)
    for warning in result.warnings:
        console.print(f'warning: {warning}', highlight=False)
    if result.pytorch:
        verdict = 'equal to four digits' if result.equal else f'not equal: {", ".join(result.differing)}'
        console.print(verdict, highlight=False)
    return 0 if result.equal else 1


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """What :func:`add_model_arguments` adds, as keyword arguments of :mod:`mmdeploy_lite.apis`."""
    names = ('deploy_cfg', 'work_dir', 'device', 'cfg_options', 'allow_mismatch', 'unsafe_checkpoint')
    return {name: getattr(args, name) for name in names}


def _shape(values: Sequence[str] | None) -> tuple[int, int] | None:
    from .errors import ConfigError

    if values is None:
        return None
    try:
        height, width = (int(value) for value in values)
    except ValueError:
        raise ConfigError(f'--shape {" ".join(values)} is not two positive integers: --shape 640 640') from None
    if height <= 0 or width <= 0:
        raise ConfigError(f'--shape {height} {width} is not two positive integers: --shape 640 640')
    return height, width


def _positive(text: str) -> int:
    """An integer of 1 or more, for argparse, which says what is wrong with another."""
    value = int(text) if text.strip().lstrip('-').isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not an integer of 1 or more")
    return value


def quiet_libraries():
    """Registry noise, deprecations inside the libraries and mmengine's info lines say nothing to a user of this
    command.
    """
    import contextlib
    import logging
    import warnings

    @contextlib.contextmanager
    def quiet():
        # recorded, as a library may ask for 'always' again: torch 2.5 does when mmengine's optimizers are imported
        with warnings.catch_warnings(record=True):
            warnings.simplefilter('ignore')
            logger = logging.getLogger('mmengine')
            level = logger.level
            logger.setLevel(logging.ERROR)
            try:
                yield
            finally:
                logger.setLevel(level)

    return quiet()


if __name__ == '__main__':
    sys.exit(main())
