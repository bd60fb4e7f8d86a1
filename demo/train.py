"""Train or measure one of the demo's two models with the libraries' own training loop and metrics.

Run from the root of the repository, after ``python demo/make_dataset.py``::

    python demo/train.py detector               # trains, writes demo/detector.pth, measures it
    python demo/train.py detector --eval-only   # measures demo/detector.pth

The libraries' own ``tools/train.py`` and ``tools/test.py`` take the same configs; what this script adds is the small
checkpoint: only the weights used for testing and the names of the classes.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import mmdeploy_lite.ops  # noqa: F401  (before mmdet and mmseg: mmcv-lite lacks the compiled operators they import)

import torch  # isort: skip
from mmengine.config import Config  # isort: skip
from mmengine.runner import Runner  # isort: skip

DEMO = Path(__file__).parent
MODELS = ('detector', 'segmentor')


def strip_checkpoint(source: Path, target: Path) -> None:
    """Keep of a training checkpoint what a test needs: ``state_dict`` and ``meta.dataset_meta``.

    Args:
        source: a checkpoint the Runner of this process has just written. With an ``EMAHook`` its ``state_dict`` already
            holds the averaged weights. It is unpickled, so it must be one's own file.
        target: where to write; loads with ``torch.load(target, weights_only=True)``.
    """
    checkpoint = torch.load(source, map_location='cpu', weights_only=False)
    stored: dict[int, torch.Tensor] = {}  # RTMDet's head has convolutions that its levels share: store them once
    weights = {
        name: stored.setdefault(tensor.data_ptr(), tensor.contiguous())
        for name, tensor in checkpoint['state_dict'].items()
    }
    dataset_meta = {key: checkpoint['meta']['dataset_meta'][key] for key in ('classes', 'palette')}
    torch.save(dict(state_dict=weights, meta=dict(dataset_meta=dataset_meta)), target)


def train(config: Config, target: Path) -> None:
    """Train as ``config`` says and write the final weights to ``target``."""
    runner = Runner.from_cfg(config)
    # Convolutions of few channels run a quarter faster on a CPU with the channels last; the weights stay the same.
    runner.model.to(memory_format=torch.channels_last)
    runner.train()
    written = Path(config.work_dir, 'last_checkpoint').read_text()
    strip_checkpoint(Path(written), target)


def evaluate(config: Config, checkpoint: Path) -> dict[str, float]:
    """Measure ``checkpoint`` on the validation set with the metrics of ``config`` and print a summary."""
    config.load_from = str(checkpoint)
    runner = Runner.from_cfg(config)
    metrics = runner.test()
    parameters = sum(parameter.numel() for parameter in runner.model.parameters())
    print(f'{checkpoint}: {parameters:,} parameters, {checkpoint.stat().st_size / 1e6:.2f} MB')
    for name, value in metrics.items():
        print(f'  {name}: {value:.4g}')
    return metrics


def main() -> None:
    """Command line of this script."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('model', choices=MODELS)
    parser.add_argument('--eval-only', action='store_true', help='measure the checkpoint, do not train')
    parser.add_argument('--checkpoint', type=Path, help='file to write or to measure, default: demo/MODEL.pth')
    parser.add_argument('--work-dir', type=Path, help='logs and full checkpoints, default: work_dirs/demo_MODEL')
    parser.add_argument('--threads', type=int, default=1, help='of PyTorch')
    args = parser.parse_args()
    warnings.filterwarnings('ignore', category=FutureWarning)  # the libraries' own, about torch.cuda.amp
    torch.set_num_threads(args.threads)

    config = Config.fromfile(str(DEMO / 'configs' / f'{args.model}.py'))
    config.work_dir = str(args.work_dir or Path('work_dirs', f'demo_{args.model}'))
    checkpoint = args.checkpoint or DEMO / f'{args.model}.pth'
    if not args.eval_only:
        train(config, checkpoint)
    evaluate(config, checkpoint)


if __name__ == '__main__':
    main()
