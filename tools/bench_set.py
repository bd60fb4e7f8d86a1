"""Measure the committed set of models and write docs/benchmark.json, docs/benchmark.md and their plots.

tools/bench_set.py [--only PATTERN] [--threads N] [--runs N] [--real FOLDER] [--peers FOLDER]. What was measured before
stays for models that are not run. Models of the libraries have calibrated random weights, and class scores like a
trained model's.
"""

import argparse
import fnmatch
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a source tree that is not installed

SEGFORMER = 'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py'
RTMDET = 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'
MASK_RCNN = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
FCN = 'mmseg::fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py'
DEEPLAB = 'mmseg::deeplabv3plus/deeplabv3plus_r50-d8_4xb2-40k_cityscapes-512x1024.py'
UPERNET = 'mmseg::upernet/upernet_r18_4xb2-40k_cityscapes-512x1024.py'
SLIDE = {'model.test_cfg.mode': 'slide', 'model.test_cfg.crop_size': (256, 256), 'model.test_cfg.stride': (171, 171)}
# name, config, cfg-options, (h, w) of the image
SET = [
    ('YOLOX-tiny', 'mmdet::yolox/yolox_tiny_8xb8-300e_coco.py', {}, (416, 416)),
    ('RTMDet-tiny', RTMDET, {}, (640, 640)),
    ('RTMDet-tiny, score_thr 0.3', RTMDET, {'model.test_cfg.score_thr': 0.3}, (640, 640)),
    ('RetinaNet-R18', 'mmdet::retinanet/retinanet_r18_fpn_1x_coco.py', {}, (800, 1344)),
    ('FCOS-R50', 'mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py', {}, (800, 1344)),
    ('ATSS-R50', 'mmdet::atss/atss_r50_fpn_1x_coco.py', {}, (800, 1344)),
    ('Faster R-CNN R50', 'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py', {}, (800, 1344)),
    ('Mask R-CNN R50', MASK_RCNN, {}, (800, 1344)),
    ('DETR-R50', 'mmdet::detr/detr_r50_8xb2-150e_coco.py', {}, (800, 1344)),
    ('FCN-R50-d8', FCN, {}, (512, 1024)),
    ('DeepLabV3+ R50-d8', DEEPLAB, {}, (512, 1024)),
    ('Fast-SCNN', 'mmseg::fastscnn/fast_scnn_8xb4-160k_cityscapes-512x1024.py', {}, (512, 1024)),
    ('UPerNet-R18', UPERNET, {}, (512, 1024)),
    ('SegFormer-b0', SEGFORMER, {}, (512, 512)),
    ('SegFormer-b0 slide', SEGFORMER, SLIDE, (512, 1024)),
    ('Demo detector', 'demo/configs/detector.py', 'demo/detector.pth', (224, 224)),
    ('YOLOX-nano, trained', 'yolox_nano_coco.py', 'yolox_nano_coco.pth', (416, 416)),
]


def peer_file(folder: Path, name: str, suffix: str = '.onnx') -> Path:
    """Where the file that another exporter made of a model of the set is looked up."""
    return folder / f'{name.replace(" ", "_")}{suffix}'


def spread_rtmdet(head: Any, run: Callable[[], Any]) -> None:
    """Class scores and boxes of each level with the mean and the spread of a trained RTMDet's, in place.

    It predicts the distances from a place to the sides of its box as they are, without an ``exp()``: of calibrated
    weights nearly all boxes are of negative size and dropped before NMS, and the best scores are 1.
    """
    import torch

    layers = [(layer, -6.0, 1.0) for layer in head.rtm_cls] + [(layer, 2.0, 1.0) for layer in head.rtm_reg]
    seen = {layer: [] for layer, *_ in layers}
    hooks = [layer.register_forward_hook(lambda module, args, output: seen[module].append(output)) for layer in seen]
    with torch.no_grad():
        run()
        for (layer, mean, spread), hook in zip(layers, hooks, strict=True):
            hook.remove()
            output = torch.cat(seen[layer])
            middle = output.mean(dim=(0, 2, 3))
            factor = spread / (output - middle[:, None, None]).std()
            layer.weight *= factor
            layer.bias.copy_((layer.bias - middle) * factor + mean)


class Model:
    """One of the set, at one size, with what it takes to export it.

    Args:
        config: of the libraries, or a file with its checkpoint.
        options: cfg-options; or the checkpoint.
        shape: (h, w) of the image.
        batch_size: see ``deploy.input.batch_size``.
    """

    def __init__(self, config: str, options: dict | str, shape: tuple[int, int], batch_size: int | None = 1) -> None:
        from mmdeploy_lite.prepare import merge_settings, prepare
        from mmdeploy_lite.tasks import TestPipeline, fix_shape
        from mmdeploy_lite.testing.models import zoo_model
        from mmdeploy_lite.testing.silence import shift_classes

        if isinstance(options, dict):
            model = zoo_model(config, options, batch_size=batch_size)
            self.task, self.loaded, self.steps = model.task, model.loaded, model.steps
            self.settings = merge_settings(type(model.task), None, model.loaded.cfg, {})
            if self.task.kind == 'detections':
                shift_classes(self.task.model, -3.0)  # means around -6
            self.task.pipeline = TestPipeline(fix_shape(self.steps, shape))
            if hasattr(head := getattr(self.task.model, 'bbox_head', None), 'rtm_reg'):
                spread_rtmdet(head, lambda: [self.task.test_step(sample) for sample in self._samples(shape)])
        else:
            with tempfile.TemporaryDirectory() as folder:
                prepared = prepare(config, options, shape=shape, work_dir=folder)
            self.task, self.loaded, self.steps = prepared.task, prepared.loaded, prepared.steps
            self.settings = prepared.settings
        self.samples = self._samples(shape)

    def _samples(self, shape: tuple[int, int]) -> list:
        from mmdeploy_lite.testing.images import scene

        return [self.task.prepare(str(seed), scene(seed, *shape)) for seed in (1, 2)]

    def export(self, path: Path):
        """Export at this size, and compare."""
        from mmdeploy_lite.export.attempt import Exporting
        from mmdeploy_lite.progress import Stages

        stages = Stages()
        exporting = Exporting(self.task, self.loaded, self.settings, self.steps, path, stages)
        return exporting.run(self.samples, 'benchmark'), stages.times['export']


def measure(
    name: str,
    config: str,
    options: dict | str,
    shape: tuple[int, int],
    threads: int,
    runs: int,
    peers: list[Path],
) -> dict:
    """Export one model at a fixed size and time it."""
    from mmdeploy_lite.benchmark.run import benchmark

    model = Model(config, options, shape)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'model.onnx')
        attempt, seconds = model.export(path)
        result = benchmark(name, model.task, model.samples[0], path, model.settings.rewriters, threads, runs, peers)
    trained = isinstance(options, str)
    return {**result.to_dict(), 'trained': trained, 'equal': attempt.verification.equal, 'export_seconds': seconds}


def grow(threads: int, runs: int) -> list[dict]:
    """Time and memory against the batch, the windows and the detections."""
    from mmdeploy_lite.benchmark.growth import measure_growth

    found = []
    with tempfile.TemporaryDirectory() as folder:

        def exported(name: str, *args) -> tuple[Path, Model]:
            model, path = Model(*args), Path(folder, f'{name}.onnx')
            model.export(path)
            return path, model

        path, model = exported('batch', *SET[0][1:], None)
        samples = model.samples * 4
        steps = [(count, path, model.task.feeds(samples[:count])) for count in (1, 2, 4, 8)]
        found.append(
            measure_growth('YOLOX-tiny 416 x 416, one file', 'images in the batch', steps, threads, runs, True)
        )
        steps = []
        for windows, width in ((3, 256), (9, 512), (12, 769), (18, 1024)):
            path, model = exported(f'windows{windows}', SEGFORMER, SLIDE, (512, width))
            steps.append((windows, path, model.task.feeds(model.samples[:1])))
        found.append(measure_growth('SegFormer-b0 slide, 512 x ...', 'windows', steps, threads, max(runs // 2, 3)))
        steps = []
        for count in (10, 50, 100):
            options = {'model.test_cfg.rcnn.max_per_img': count, 'model.test_cfg.rcnn.score_thr': 1e-4}
            path, model = exported(f'detections{count}', MASK_RCNN, options, (320, 480))
            steps.append((count, path, model.task.feeds(model.samples[:1])))
        found.append(measure_growth('Mask R-CNN R50, 320 x 480', 'detections', steps, threads, max(runs // 2, 3)))
    return [growth.to_dict() for growth in found]


def write_page(found: dict, path: Path) -> None:
    """``docs/benchmark.md``, and the plots beside it."""
    from mmdeploy_lite.benchmark.growth import plot_growth

    lines = [
        '# Benchmark',
        '',
        'Medians of runs turn by turn in one process, batch 1, fixed size; made by `make bench`, which is',
        '`tools/bench_set.py`. Weights are random and calibrated, with class scores like a trained model (means around',
        '-6), except where it says trained; the boxes of RTMDet-tiny too have the size of a trained one. 94% of its',
        'pairs of place and class are above its threshold of 0.001, and 0.02% above 0.3, where of trained YOLOX-nano',
        '0.1 to 0.3% are above 0.001. Of segmentors with random weights 57 to 74% of the cells between the pixels of',
        'the map lie between different classes and are interpolated (see [file.md](file.md)); of the trained demo',
        'segmentor it is 0 to 17%, on the images of its demo. The *bare network* is the same weights',
        'and preprocessing up to the raw outputs of the head (of two-stage models, of the RPN): the limit. Where the',
        "file computes convolutions before upsampling or by Winograd's algorithm (see [file.md](file.md)), so does the",
        'bare network, and it is there *as written* as well, as a plain export has it. *Post-processing* is the part',
        "of the exported file's time that comes after its last operator with weights; what Winograd's algorithm does",
        'with the products of the last convolutions comes after it. Load is the time until a session is ready, and',
        'peak memory what loading and running the file adds to a process. A *peer* is the file that',
        'MMDeploy 1.3.1 makes of the same weights (`tools/bench_peers.py` writes them) for the same size; it starts',
        'from the normalised tensor, so that normalising is in the time of ours and not in its, and leaves masks of',
        'instances as the mask head gives them, 28 x 28, where ours pastes them into the image.',
    ]
    for entry in found['models']:
        height, width = entry['shape']
        lines += [
            '',
            f'## {entry["model"]}, {height} x {width}',
            '',
            f'{entry["threads"]} threads, {entry["runs"]} runs; exported in {entry["export_seconds"]:.1f} s;'
            f' {"equal to PyTorch" if entry["equal"] else "NOT equal to PyTorch"}; post-processing'
            f' {entry["post_share"]:.1%}.',
            '',
            '| | median ms | spread | / bare | / PyTorch | MB | nodes | load ms | peak MB |',
            '| --- | --- | --- | --- | --- | --- | --- | --- | --- |',
        ]
        for row in entry['rows']:
            cells = [row.get(key, '') for key in ('mb', 'nodes', 'load_ms', 'peak_mb')]
            lines.append(
                f'| {row["name"]} | {row["median_ms"]} | ±{row["spread"]:.0%} | {row["ratio_to_bare"]:.2f}'
                f' | {row["ratio_to_pytorch"]:.2f} | {" | ".join(map(str, cells))} |'
            )
    if found['growth']:
        lines += ['', '## As the work grows', '', '![Time and memory as the work grows](benchmark_growth.png)', '']
        for growth in found['growth']:
            lines += [
                f'{growth["title"]}, {growth["threads"]} threads:',
                '',
                f'| {growth["unit"]} | ms per {growth["per"]} | peak MB |',
                '| --- | --- | --- |',
                *(f'| {row["amount"]} | {row["median_ms"]} | {row["peak_mb"]} |' for row in growth['rows']),
                '',
            ]
        plot_growth(found['growth'], path.with_name('benchmark_growth.png'))
    path.write_text('\n'.join(lines).rstrip() + '\n', encoding='utf-8')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--only', metavar='PATTERN', default='*', help="of names, e.g. 'SegFormer*', or 'growth'")
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--runs', type=int, default=10)
    parser.add_argument('--real', metavar='FOLDER', help='where yolox_nano_coco.py and its .pth are; measured too')
    parser.add_argument(
        '--peers',
        metavar='FOLDER',
        type=Path,
        help='files of MMDeploy for the same weights and sizes, named like the models, as RTMDet-tiny.onnx',
    )
    args = parser.parse_args()

    import torch

    torch.set_num_threads(args.threads)
    path = ROOT / 'docs' / 'benchmark.json'
    found = json.loads(path.read_text()) if path.is_file() else {'models': [], 'growth': []}

    def save() -> None:
        path.write_text(json.dumps(found, indent=1) + '\n', encoding='utf-8')
        write_page(found, path.with_suffix('.md'))

    for name, config, options, shape in SET:
        if not fnmatch.fnmatch(name, args.only):
            continue
        if isinstance(options, str):
            folder = ROOT if config.startswith('demo') else args.real and Path(args.real)
            if not folder:
                continue
            config, options = str(folder / config), str(folder / options)
        peer = args.peers and peer_file(args.peers, name)
        peers = [peer] if peer and peer.is_file() else []
        entry = measure(name, config, options, shape, args.threads, args.runs, peers)
        print(name, *(f'{row["name"]} {row["median_ms"]} ms' for row in entry['rows']), sep='\n  ')
        others = {other['model']: other for other in found['models']} | {name: entry}
        found['models'] = [others[known] for known, *_ in SET if known in others]
        save()
    if fnmatch.fnmatch('growth', args.only):
        found['growth'] = grow(args.threads, args.runs)
        save()
    return 0


if __name__ == '__main__':
    sys.exit(main())
