"""Draw the data set of the demo: textured scenes with six kinds of shapes, for detection and for segmentation.

Every scene is drawn from its own seed, so that the same command gives the same scenes, and number 17 of the validation
set stays the same when the training set grows. Most objects have a colour that is usual for their class, and it is easy
to be sure of them. The others are meant to be hard: their colour says nothing or is that of what lies behind them, some
are half covered, and shapes that are no object (ellipses, hexagons, bars) look like one. A detector trained on it is
therefore sure of some objects and unsure of others, which is what a comparison of two backends needs: many distinct
scores, overlapping boxes, near misses.

Writes::

    demo/data/
      train/images/00000.jpg ...   train/labels/00000.png ...   train/instances.json
      val/images/...               val/labels/...               val/instances.json

``instances.json`` is in the COCO format (boxes of the visible part, no masks); a label map holds the index into
``SEGMENT_CLASSES`` of every pixel.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

STUFF_CLASSES = ('sky', 'ground')
OBJECT_CLASSES = ('disc', 'square', 'triangle', 'ring', 'star', 'cross')
SEGMENT_CLASSES = STUFF_CLASSES + OBJECT_CLASSES

# (height, width): landscape, portrait and square.
SIZES = ((240, 320), (200, 300), (270, 360), (320, 240), (300, 200), (256, 256), (288, 288))
SPLITS = ('train', 'val')

# An object of which less than this part can be seen is no longer annotated as a box (its pixels keep their label).
MIN_VISIBLE = 0.35
MIN_BOX = 8


@dataclass
class Scene:
    """One drawn scene.

    Attributes:
        image: (H, W, 3) uint8, BGR.
        labels: (H, W) uint8, index into :data:`SEGMENT_CLASSES`.
        boxes: (N, 4) float x1 y1 x2 y2 of the visible parts, in pixels of ``image``; x2 and y2 are exclusive.
        classes: (N,) int, index into :data:`OBJECT_CLASSES`.
        areas: (N,) int, number of visible pixels.
    """

    image: np.ndarray
    labels: np.ndarray
    boxes: list[tuple[int, int, int, int]]
    classes: list[int]
    areas: list[int]


def smooth_noise(rng: np.random.Generator, height: int, width: int, cell: float) -> np.ndarray:
    """Noise that varies over about ``cell`` pixels.

    Returns:
        (height, width) float32 in 0..1.
    """
    rows, columns = max(2, round(height / cell)), max(2, round(width / cell))
    coarse = rng.random((rows, columns), dtype=np.float32)
    return np.clip(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), 0, 1)


def pattern(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A random pattern: plain, stripes, checks, dots, noise or a gradient.

    Returns:
        (height, width) float32 in 0..1, the weight of the second of two colours.
    """
    ys, xs = np.mgrid[:height, :width].astype(np.float32)
    angle = rng.uniform(0, np.pi)
    along = xs * np.cos(angle) + ys * np.sin(angle)
    across = ys * np.cos(angle) - xs * np.sin(angle)
    period = rng.uniform(5, 20)
    kind = rng.integers(6)
    if kind == 0:
        return np.zeros((height, width), np.float32)
    if kind == 1:
        return (0.5 + 0.5 * np.sin(2 * np.pi * along / period)).astype(np.float32)
    if kind == 2:
        return ((np.floor(along / period) + np.floor(across / period)) % 2).astype(np.float32)
    if kind == 3:
        distance = np.hypot(along % period - period / 2, across % period - period / 2)
        return (distance < period / 3.3).astype(np.float32)
    if kind == 4:
        return smooth_noise(rng, height, width, rng.uniform(2, 12))
    return ((along - along.min()) / (np.ptp(along) + 1)).astype(np.float32)


def muted(rng: np.random.Generator, darkest: float, brightest: float) -> np.ndarray:
    """A colour not far from grey; (3,) float BGR."""
    return rng.uniform(darkest, brightest) + rng.uniform(-25, 25, 3)


def usual_colour(rng: np.random.Generator, thing: int) -> np.ndarray:
    """A colour around the hue of a class, index into :data:`OBJECT_CLASSES`; (3,) float BGR."""
    hue = (thing * 180 / len(OBJECT_CLASSES) + rng.normal(0, 5)) % 180
    hsv = np.array([[[hue, rng.uniform(150, 250), rng.uniform(120, 250)]]], np.uint8)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)[0, 0].astype(float)


def paint(rng: np.random.Generator, height: int, width: int, first: np.ndarray) -> np.ndarray:
    """A random texture of a BGR colour and a brighter or darker one; (height, width, 3) float32, BGR, 0..255."""
    second = first * rng.uniform(0.6, 1.35) + rng.uniform(-18, 18, 3)
    weight = pattern(rng, height, width)[..., None]
    return np.clip(first * (1 - weight) + second * weight, 0, 255).astype(np.float32)


def draw_sky(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Clouds over a vertical gradient; (height, width, 3) float32, BGR."""
    top, bottom, cloud = muted(rng, 100, 210), muted(rng, 130, 230), muted(rng, 190, 240)
    fall = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
    clouds = smooth_noise(rng, height, width, 60) * 0.6 + smooth_noise(rng, height, width, 20) * 0.4
    clouds = np.clip(clouds * 2 - 0.8, 0, 1)[..., None]
    return (top * (1 - fall) + bottom * fall) * (1 - clouds) + cloud * clouds


def draw_ground(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Speckles, bricks or a random texture under grain; (height, width, 3) float32, BGR."""
    kind = rng.integers(3)
    if kind == 0:
        ground = paint(rng, height, width, muted(rng, 40, 190))
    else:
        ground = np.full((height, width, 3), muted(rng, 40, 190), np.float32)
        if kind == 1:
            tall, wide = int(rng.integers(8, 20)), int(rng.integers(18, 44))
            joint = ground[0, 0] + rng.uniform(-60, 60, 3)
            for row, y in enumerate(range(0, height, tall)):
                ground[y : y + 2] = joint
                for x in range((row % 2) * wide // 2, width, wide):
                    ground[y : y + tall, x : x + 2] = joint
    grain = smooth_noise(rng, height, width, 1.5) + smooth_noise(rng, height, width, 5) - 1
    return ground + grain[..., None] * rng.uniform(25, 70)


def polygon(name: str, rng: np.random.Generator) -> np.ndarray:
    """Outline of a shape with radius 1 around the origin, not rotated; (P, 2) float x y."""
    if name == 'square':
        return np.array([(-0.75, -0.75), (0.75, -0.75), (0.75, 0.75), (-0.75, 0.75)])
    if name == 'cross':
        arm = rng.uniform(0.2, 0.33)
        quarter = np.array([(arm, -1), (arm, -arm), (1, -arm)])
        turn = np.array([(0, 1), (-1, 0)])
        return np.concatenate([quarter @ np.linalg.matrix_power(turn, i) for i in range(4)])
    if name == 'bar':
        return np.array([(-1, -0.12), (1, -0.12), (1, 0.12), (-1, 0.12)])
    if name == 'star':
        radii = np.tile([1, rng.uniform(0.38, 0.52)], 5)
    else:
        corners = dict(triangle=3, hexagon=6, disc=48, ring=48, ellipse=48)[name]
        radii = np.ones(corners)
    angles = np.arange(len(radii)) * 2 * np.pi / len(radii)
    points = np.stack([np.cos(angles), np.sin(angles)], 1) * radii[:, None]
    if name == 'ellipse':
        points[:, 1] *= rng.uniform(0.35, 0.6)
    return points


def coverage(
    name: str, rng: np.random.Generator, centre: tuple[float, float], radius: float, height: int, width: int
) -> np.ndarray:
    """How much of each pixel a randomly turned, slightly stretched shape covers; (height, width) float32 in 0..1."""
    outline = polygon(name, rng)
    angle = rng.uniform(0, 2 * np.pi)
    turn = np.array([(np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))])
    stretch = np.array([1, rng.uniform(0.82, 1)])
    points = (outline * stretch) @ turn * radius + centre
    scale = 2  # drawn twice as large and averaged down, for smooth edges
    canvas = np.zeros((height * scale, width * scale), np.uint8)
    cv2.fillPoly(canvas, [np.round(points * scale).astype(np.int32)], 255)
    if name == 'ring':
        inner = (points - centre) * rng.uniform(0.45, 0.7) + centre
        cv2.fillPoly(canvas, [np.round(inner * scale).astype(np.int32)], 0)
    return cv2.resize(canvas, (width, height), interpolation=cv2.INTER_AREA).astype(np.float32) / 255


def colour_at(image: np.ndarray, centre: tuple[float, float]) -> np.ndarray:
    """Mean BGR colour of ``image`` around a point (x, y) in pixels."""
    x = int(np.clip(centre[0], 8, image.shape[1] - 9))
    y = int(np.clip(centre[1], 8, image.shape[0] - 9))
    return image[y - 8 : y + 9, x - 8 : x + 9].reshape(-1, 3).mean(0)


def put(image: np.ndarray, texture: np.ndarray, cover: np.ndarray) -> None:
    """Blend ``texture`` over ``image`` in place where ``cover`` says so."""
    image += (texture - image) * cover[..., None]


def develop(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Light falling from one side, blur and sensor noise; (H, W, 3) float32 to uint8."""
    height, width = image.shape[:2]
    ys, xs = np.mgrid[:height, :width].astype(np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    fall = ((xs / width - 0.5) * np.cos(angle) + (ys / height - 0.5) * np.sin(angle)) * rng.uniform(0, 0.9)
    image = image * (rng.uniform(0.75, 1.1) + fall)[..., None]
    blur = rng.uniform(0, 1.3)
    if blur > 0.4:
        image = cv2.GaussianBlur(image, (0, 0), blur)
    image = image + rng.normal(0, rng.uniform(1, 9), image.shape)
    return np.clip(np.round(image), 0, 255).astype(np.uint8)


def draw_scene(rng: np.random.Generator, size: Sequence[int] | None = None, objects: int | None = None) -> Scene:
    """Draw one scene.

    Args:
        rng: where all the choices come from.
        size: (height, width) in pixels; one of :data:`SIZES` by default.
        objects: how many objects to draw; 1 to 9, and none in one of twenty scenes, by default.
    """
    height, width = size or SIZES[rng.integers(len(SIZES))]
    if objects is None:
        objects = 0 if rng.random() < 0.05 else int(rng.integers(1, 10))
    image = draw_sky(rng, height, width).astype(np.float32)
    horizon = rng.uniform(0.2, 0.75) * height + (smooth_noise(rng, 1, width, width / 4)[0] - 0.5) * height * 0.35
    is_ground = (np.arange(height)[:, None] > horizon[None]).astype(np.float32)
    put(image, draw_ground(rng, height, width), is_ground)
    labels = is_ground.astype(np.uint8)

    things = [*rng.integers(len(OBJECT_CLASSES), size=objects)] + [-1] * int(rng.integers(0, 4))
    rng.shuffle(things)
    owner = np.full((height, width), -1)
    drawn: list[tuple[int, int]] = []  # class and number of pixels of each object before anything covers it
    centre = (0.0, 0.0)
    for thing in things:
        radius = min(height, width) * np.exp(rng.uniform(np.log(0.075), np.log(0.25)))
        if drawn and rng.random() < 0.4:  # next to the one before, often over it
            angle, distance = rng.uniform(0, 2 * np.pi), radius * rng.uniform(0.7, 1.6)
            centre = (centre[0] + distance * np.cos(angle), centre[1] + distance * np.sin(angle))
            centre = (float(np.clip(centre[0], 0, width)), float(np.clip(centre[1], 0, height)))
        else:
            centre = (rng.uniform(0, width), rng.uniform(0, height))
        chance = rng.random()
        if chance < 0.07:
            colour = colour_at(image, centre) + rng.uniform(-60, 60, 3)
        elif chance < 0.18 or thing < 0:
            colour = rng.uniform(20, 235, 3)
        else:
            colour = usual_colour(rng, int(thing))
        texture = paint(rng, height, width, colour)
        if thing < 0:
            name = ('ellipse', 'hexagon', 'bar')[rng.integers(3)]
            put(image, texture, coverage(name, rng, centre, radius * 0.8, height, width) * rng.uniform(0.5, 1))
            continue
        cover = coverage(OBJECT_CLASSES[thing], rng, centre, radius, height, width)
        put(image, texture, cover * rng.uniform(0.8, 1))
        mask = cover > 0.5
        labels[mask] = len(STUFF_CLASSES) + thing
        owner[mask] = len(drawn)
        drawn.append((int(thing), int(mask.sum())))

    scene = Scene(develop(rng, image), labels, [], [], [])
    for index, (thing, pixels) in enumerate(drawn):
        ys, xs = np.nonzero(owner == index)
        if len(ys) < max(1, MIN_VISIBLE * pixels):
            continue
        box = (int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1)
        if min(box[2] - box[0], box[3] - box[1]) < MIN_BOX:
            continue
        scene.boxes.append(box)
        scene.classes.append(thing)
        scene.areas.append(len(ys))
    return scene


def scene_rng(seed: int, split: str, index: int) -> np.random.Generator:
    """The generator of scene ``index`` of a split, independent of all the others."""
    return np.random.default_rng([seed, SPLITS.index(split), index])


def write_split(root: Path, split: str, count: int, seed: int) -> int:
    """Draw and write ``count`` scenes of one split; returns the number of annotated objects."""
    for folder in ('images', 'labels'):
        (root / split / folder).mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for index in range(count):
        scene = draw_scene(scene_rng(seed, split, index))
        height, width = scene.labels.shape
        name = f'{index:05d}'
        cv2.imwrite(str(root / split / 'images' / f'{name}.jpg'), scene.image, [cv2.IMWRITE_JPEG_QUALITY, 92])
        cv2.imwrite(str(root / split / 'labels' / f'{name}.png'), scene.labels)
        images.append(dict(id=index, file_name=f'{name}.jpg', height=height, width=width))
        for (x1, y1, x2, y2), label, area in zip(scene.boxes, scene.classes, scene.areas, strict=True):
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=index,
                    category_id=label,
                    bbox=[x1, y1, x2 - x1, y2 - y1],
                    area=area,
                    iscrowd=0,
                )
            )
    categories = [dict(id=index, name=name) for index, name in enumerate(OBJECT_CLASSES)]
    content = dict(images=images, annotations=annotations, categories=categories)
    (root / split / 'instances.json').write_text(json.dumps(content))
    return len(annotations)


def main() -> None:
    """Command line of this script."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--out', type=Path, default=Path(__file__).parent / 'data', help='default: demo/data')
    parser.add_argument('--train', type=int, default=1500, help='number of training scenes')
    parser.add_argument('--val', type=int, default=200, help='number of validation scenes')
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    cv2.setNumThreads(1)
    for split, count in zip(SPLITS, (args.train, args.val), strict=True):
        boxes = write_split(args.out, split, count, args.seed)
        print(f'{split}: {count} scenes with {boxes} objects in {args.out / split}')


if __name__ == '__main__':
    main()
