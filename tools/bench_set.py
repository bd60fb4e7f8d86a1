"""Measure the committed set of models, with calibrated weights, and write docs/benchmark.json and docs/benchmark.md.

tools/bench_set.py [--only PATTERN] [--threads N] [--runs N]. What was measured before stays for models that are not
run.
"""

import argparse
import fnmatch
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a source tree that is not installed

SLIDE = {'model.test_cfg.mode': 'slide', 'model.test_cfg.crop_size': (256, 256), 'model.test_cfg.stride': (171, 171)}
# name, config, cfg-options, (h, w) of the image
SET = [
    ('YOLOX-tiny', 'mmdet::yolox/yolox_tiny_8xb8-300e_coco.py', {}, (416, 416)),
    ('RTMDet-tiny', 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py', {}, (640, 640)),
    ('RetinaNet-R18', 'mmdet::retinanet/retinanet_r18_fpn_1x_coco.py', {}, (800, 1344)),
    ('Faster R-CNN R50', 'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py', {}, (800, 1344)),
    ('SegFormer-b0 slide', 'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py', SLIDE, (512, 1024)),
]


def measure(name: str, config: str, options: dict, shape: tuple[int, int], threads: int, runs: int) -> dict:
    """Export one model at a fixed size and time it."""
    import torch

    from mmdeploy_lite.benchmark.run import benchmark
    from mmdeploy_lite.export.attempt import Exporting
    from mmdeploy_lite.prepare import merge_settings
    from mmdeploy_lite.progress import Stages
    from mmdeploy_lite.tasks import TestPipeline, fix_shape
    from mmdeploy_lite.testing.images import scene
    from mmdeploy_lite.testing.models import zoo_model

    torch.set_num_threads(threads)
    model = zoo_model(config, options)
    model.task.pipeline = TestPipeline(fix_shape(model.steps, shape))
    samples = model.samples({'one': scene(1, *shape), 'two': scene(2, *shape)})
    settings = merge_settings(type(model.task), None, model.loaded.cfg, {})
    stages = Stages()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'model.onnx')
        attempt = Exporting(model.task, model.loaded, settings, model.steps, path, stages).run(samples, 'benchmark')
        result = benchmark(name, model.task, samples[0], path, settings.rewriters, threads, runs)
    equal = attempt.verification.equal
    return {**result.to_dict(), 'equal': equal, 'export_seconds': round(stages.times['export'], 1)}


def write_table(entries: list[dict], path: Path) -> None:
    lines = [
        '# Benchmark',
        '',
        'Medians of runs turn by turn in one process, batch 1, fixed size, calibrated random weights; made by',
        '`tools/bench_set.py`. The *bare network* is the same weights and preprocessing up to the raw outputs of the',
        'head (of two-stage models, of the RPN): the limit. Peak memory is what loading and running the file adds to',
        'a process.',
    ]
    for entry in entries:
        height, width = entry['shape']
        lines += [
            '',
            f'## {entry["model"]}, {height} x {width}',
            '',
            f'{entry["threads"]} threads, {entry["runs"]} runs; exported in {entry["export_seconds"]} s;'
            f' {"equal to PyTorch" if entry["equal"] else "NOT equal to PyTorch"}.',
            '',
            '| | median ms | spread | / bare | / PyTorch | MB | nodes | peak MB |',
            '| --- | --- | --- | --- | --- | --- | --- | --- |',
        ]
        for row in entry['rows']:
            cells = [row.get(key, '') for key in ('mb', 'nodes', 'peak_mb')]
            lines.append(
                f'| {row["name"]} | {row["median_ms"]} | ±{row["spread"]:.0%} | {row["ratio_to_bare"]:.2f}'
                f' | {row["ratio_to_pytorch"]:.2f} | {" | ".join(map(str, cells))} |'
            )
    path.write_text('\n'.join(lines) + '\n', encoding='utf-8')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--only', metavar='PATTERN', default='*', help="of names, e.g. 'SegFormer*'")
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--runs', type=int, default=10)
    args = parser.parse_args()
    path = ROOT / 'docs' / 'benchmark.json'
    entries = {entry['model']: entry for entry in json.loads(path.read_text())} if path.is_file() else {}
    for name, config, options, shape in SET:
        if fnmatch.fnmatch(name, args.only):
            entries[name] = measure(name, config, options, shape, args.threads, args.runs)
            print(name, *(f'{row["name"]} {row["median_ms"]} ms' for row in entries[name]['rows']), sep='\n  ')
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(list(entries.values()), indent=1) + '\n', encoding='utf-8')
            write_table(list(entries.values()), path.with_suffix('.md'))
    return 0


if __name__ == '__main__':
    sys.exit(main())
