"""Random weights that answer differently for different images.

Freshly initialized, a network gives every box about the same score, and no fault shows. One forward pass that
rescales each layer to unit output spread on its first call gives any architecture outputs that depend on the image.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Linear, nn.ConvTranspose2d)
_CLS_STD, _CLS_MEAN = 1.5, -4.0  # the best of a million (anchor, class) pairs then scores about 0.95
_CLASSIFIERS = tuple('_cls conv_seg fc_seg cls_seg cls_embed cls_conv cls_out class_embed cls_score conv_obj'.split())
_MASK_FEATURES = ('mask_feature', 'pix_mlp.layers.2')
_MASK_STD = 0.25  # of 256 channels: mask logits of spread 4
_STANDARDIZED = ('ConvWS2d', 'ConvAWS2d', 'SAConv2d')
_RESIDUAL = 0.3
"""Of what a block adds, where weights are standardized: with 1, rounding grows a hundredfold through 50 random layers,
and PyTorch itself in float32 is 2 % from float64. Trained ones start at 0 there.
"""
_STEP_STD = 0.1  # of a box that moves stage by stage: a twentieth of its size


@dataclass
class Calibration:
    """What was done.

    Attributes:
        rescaled: number of layers.
        classifiers: names of the layers that give class scores.
    """

    rescaled: int
    classifiers: list[str]


def calibrate(model: nn.Module, run: Callable[[], Any], seed: int = 0) -> Calibration:
    """Give the model random weights with unit output spread in every layer, in place.

    Args:
        model: in eval mode.
        run: one forward pass of the model on an image, such as ``lambda: task.test_step(sample)``.
        seed: of the weights.

    Returns:
        What was done.
    """
    generator = torch.Generator().manual_seed(seed)
    classifiers = score_layer_names(model)
    for module in model.modules():
        if isinstance(module, _LAYERS):
            module.weight.data.normal_(std=module.weight[0].numel() ** -0.5, generator=generator)
            if module.bias is not None:
                module.bias.data.zero_()
        elif isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
            # statistics that are not trivial, so that folding them into the convolution is exercised
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.normal_(std=0.3, generator=generator)
            module.running_mean.normal_(std=0.3, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
        if type(module).__name__ == 'EmbeddingRPNHead':  # boxes around the whole image, not of negative size
            module.init_weights()
        if type(module).__name__ == 'L2Norm':  # SSD's neck makes it of whatever was in memory
            module.weight.data.fill_(module.scale)
        for name, parameter in module.named_parameters(recurse=False):
            if name == 'level_embed' or type(module).__name__ == 'TridentConv':  # which nothing but a checkpoint sets
                parameter.data.normal_(std=parameter[0].numel() ** -0.5, generator=generator)
    if any(type(module).__name__ in _STANDARDIZED for module in model.modules()):
        for block in model.modules():
            if hasattr(block, 'downsample') and isinstance(norm := getattr(block, 'norm3', None), nn.Module):
                norm.weight.data *= _RESIDUAL
    for parameter in _silent(model):
        parameter.data.normal_(std=0.3, generator=generator)
    embeds = _mask_embeds(model)
    _draw_class_names(model, generator)
    goals = {name: (_MASK_STD, 0.0) for name in embeds} | {name: (_CLS_STD, _CLS_MEAN) for name in classifiers}
    if embeds:
        _tell_queries_apart(model, generator)
        goals |= {name: (1.0, 0.0) for name, _ in model.named_modules() if name.endswith(_MASK_FEATURES)}
        goals |= {name: (4.0, 0.0) for name, _ in model.named_modules() if name.endswith('attn_mlp.layers.2')}
    goals |= {name: (_STEP_STD, 0.0) for name in _box_steps(model)} | _corner_goals(model)
    done: set[int] = set()
    handles = [
        module.register_forward_hook(_rescale(module, goals.get(name), done))
        for name, module in model.named_modules()
        if isinstance(module, _LAYERS)
    ]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    if embeds:
        _calibrate_last_stage(model, run, goals)
    _tell_recognized_apart(model, run)
    for name in _last_convs(model, 'CornerHead', '[tb][lr]_heat'):
        # corners make a box if both are of one class: of 80 equal ones, hardly any of a hundred corners finds its other
        heat, rest, less = model.get_submodule(name), slice(1, None), 0.2
        heat.weight.data[rest] *= less
        heat.bias.data[rest] = less * heat.bias.data[rest] + (1 - less) * _CLS_MEAN  # which is the mean of the output
    return Calibration(len(done), sorted(classifiers))


def _silent(model: nn.Module) -> list[nn.Parameter]:
    """Parameters that start at zero, so that what they weigh shows in no answer: position embeddings, the share of an
    attention. Not those of layers that are calibrated, nor biases.
    """
    normalizations = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
    return [
        parameter
        for module in model.modules()
        if not isinstance(module, (*_LAYERS, *normalizations))
        for name, parameter in module.named_parameters(recurse=False)
        if not name.endswith('bias') and not parameter.any()
    ]


def _mask_embeds(model: nn.Module) -> list[str]:
    """Names of the last layers of what mask transformers multiply their pixels with."""
    last = {name.rpartition('.')[0]: name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return [name for parent, name in last.items() if parent.endswith(('mask_embed', 'query_mlp.layers'))]


def _box_steps(model: nn.Module) -> list[str]:
    """Names of the layers that move boxes stage by stage: large steps multiply rounding, and leave the image, outside
    of which mmdet pastes no mask.
    """
    found = []
    for head, module in model.named_modules():
        if type(module).__name__ == 'SparseRoIHead':
            found += [f'{head}.{name}' for name, _ in module.named_modules() if name.endswith('fc_reg')]
        if getattr(model, 'with_box_refine', False) and isinstance(
            getattr(module, 'reg_branches', None), nn.ModuleList
        ):
            for index, branch in enumerate(module.reg_branches):
                last = [name for name, layer in branch.named_modules() if isinstance(layer, nn.Linear)][-1]
                found.append(f'{head}.reg_branches.{index}.{last}')
    return found


def _corner_goals(model: nn.Module) -> dict[str, tuple[float, float]]:
    """(spread, mean) of what tells which corners belong together, by the names of the layers that give it: embeddings
    nearer to each other than the usual threshold of 0.5, logarithms of shifts to the middle of boxes of some cells.
    """
    embeds = _last_convs(model, 'CornerHead', '[tb][lr]_emb')
    shifts = _last_convs(model, 'CornerHead', '[tb][lr]_centripetal_shift')
    return dict.fromkeys(embeds, (0.2, 0.0)) | dict.fromkeys(shifts, (0.1, 2.0))


def _last_convs(model: nn.Module, kind: str, branches: str) -> list[str]:
    """Names of the layers that end the branches, one for each level, of heads of a class or one derived from it.

    Args:
        model: that has such heads, or not.
        kind: the class.
        branches: a regular expression for their names.
    """
    found = []
    for owner, head in model.named_modules():
        if kind not in (base.__name__ for base in type(head).__mro__):
            continue
        for branch, levels in head.named_children():
            for level, layers in levels.named_children() if re.fullmatch(branches, branch) else ():
                last = [name for name, layer in layers.named_modules() if isinstance(layer, _LAYERS)][-1]
                found.append('.'.join(filter(None, (owner, branch, level, last))))
    return found


def _tell_queries_apart(model: nn.Module, generator: torch.Generator) -> None:
    """Queries far apart and attention that is picky, in place: else all queries of a mask transformer answer alike."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith(('query_embed', 'query_feat')):
            module.weight.data.normal_(std=5.0, generator=generator)
        if isinstance(module, nn.MultiheadAttention) and 'decoder' in name:
            module.in_proj_weight.data[: 2 * module.embed_dim] *= 3  # of queries and keys


def _tell_recognized_apart(model: nn.Module, run: Callable[[], Any]) -> None:
    """Take away, in place, what the tokens of SAN's image encoder have in common, which is nearly all of a random one:
    else all queries are of one class.
    """
    for module in model.modules():
        if type(module).__name__ != 'RecWithAttnbias':
            continue
        tokens: list[Tensor] = []
        handle = module.ln_post.register_forward_hook(lambda _, args, output, tokens=tokens: tokens.append(output))
        with torch.no_grad():
            run()
        handle.remove()
        module.ln_post.bias.data -= tokens[-1].flatten(0, -2).mean(dim=0)


def _draw_class_names(model: nn.Module, generator: torch.Generator) -> None:
    """Embeddings of the class names for models that compare with them, in place where they are kept once computed.

    A text encoder with random weights tells no two names apart. It is no part of the graph, only what it answers is.
    """
    for module in model.modules():
        if type(module).__name__ != 'CLIPTextEncoder' or not module.cache_feature:
            continue
        module.logit_scale.data.fill_(4.6)  # e^4.6 is 100, which trained ones end at
        shape = (model.num_classes, module.text_projection.shape[1])
        drawn = nn.functional.normalize(torch.randn(shape, generator=generator), dim=-1)
        names = module.vocabulary
        module.cache.update({module.dataset_name: drawn} if names is None else zip(names, drawn, strict=True))


def _calibrate_last_stage(model: nn.Module, run: Callable[[], Any], goals: dict[str, tuple[float, float]]) -> None:
    """Give layers that run once for each decoder stage their goal in the last one, whose output is the answer."""
    modules, last = dict(model.named_modules()), {}
    handles = [
        modules[name].register_forward_hook(lambda module, args, output, name=name: last.update({name: output}))
        for name in goals
    ]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    for name, output in last.items():
        if isinstance(modules[name], nn.Linear):
            _rescale(modules[name], goals[name], set())(
                modules[name], None, output[-1] if output.dim() == 4 else output
            )


def _rescale(module: nn.Module, goal: tuple[float, float] | None, done: set[int]) -> Callable:
    """Unit spread; with a goal (spread, mean) that, each channel by itself."""
    std, center = goal or (1.0, 0.0)

    def hook(_: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        if id(module) in done or output.numel() < 2:
            return None
        done.add(id(module))
        mean = output.new_zeros(())
        if goal:  # each class by itself, or a few win everywhere
            channel = output.dim() - 1 if isinstance(module, nn.Linear) else 1
            mean = output.mean([dim for dim in range(output.dim()) if dim != channel])
        spread = mean if isinstance(module, nn.Linear) or not goal else mean.reshape(-1, *[1] * (output.dim() - 2))
        scale = std / (output - spread).std().clamp(min=1e-6)
        # a convolution that standardizes its weights is scaled by what it multiplies them with then, if anything
        getattr(module, 'weight_gamma', module.weight).data.mul_(scale)
        if module.bias is None:
            return output * scale
        shift = center - mean * scale
        module.bias.data = module.bias.data * scale + shift
        return (output - spread) * scale + center

    return hook


def score_layer_names(model: nn.Module) -> set[str]:
    """Names of the last layers that give class scores: named for it, and last of their kind."""
    found = {
        name for name, module in model.named_modules() if isinstance(module, _LAYERS) and _looks_like_classifier(name)
    }
    # SSD has them under the name of other heads' towers
    return found.union(_last_convs(model, 'SSDHead', 'cls_convs'), _last_convs(model, 'CornerHead', '[tb][lr]_heat'))


def _looks_like_classifier(name: str) -> bool:
    parts = [part for part in name.split('.') if not part.isdigit()]
    last = parts[-1] if parts else ''
    return (last.endswith(_CLASSIFIERS) or last in ('cls_branches', 'logits', 'cls')) and not any(
        part in last for part in ('centerness', 'bbox', 'reg')
    )  # SABL classifies buckets of its boxes
