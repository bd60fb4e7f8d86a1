"""Is the graph what was traced: operators, inputs, modules."""

from __future__ import annotations

import copy
import functools

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from mmdeploy_lite.export.audit import foreign_operators, invalid_model, lost_inputs, sizes_from_values
from mmdeploy_lite.export.scopes import ScopeRecorder, live_modules, lost_modules


def model_of(nodes, inputs=('image',), outputs=('out',), domains=('',)):
    """A graph of float vectors."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ['n']) for name in (*inputs, *outputs)]
    graph = helper.make_graph(nodes, 'g', values[: len(inputs)], values[len(inputs) :])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, 17) for domain in domains], ir_version=8)


def branch(node):
    """An ``If`` with the node in one of its branches."""
    value = helper.make_tensor_value_info('y', TensorProto.FLOAT, None)
    node.output[0] = 'y'
    inside = helper.make_graph([node], 'then', [], [value])
    other = helper.make_graph([helper.make_node('Identity', ['image'], ['y'])], 'else', [], [value])
    condition = helper.make_node('Constant', [], ['c'], value=helper.make_tensor('c', TensorProto.BOOL, [], [True]))
    return [condition, helper.make_node('If', ['c'], ['out'], then_branch=inside, else_branch=other)]


class TestSizesFromValues:
    @pytest.mark.parametrize('only_loops', [False, True])
    @pytest.mark.parametrize('place', ['outside', 'If', 'Loop'])
    def test_where_sizes_are_fixed(self, place, only_loops):
        nodes = branch(helper.make_node('NonZero', ['image'], ['y']))
        if place == 'outside':
            nodes = [helper.make_node('NonZero', ['image'], ['out'])]
        else:
            nodes[-1].op_type = place
        problems = sizes_from_values(model_of(nodes), only_loops)
        assert len(problems) == (place == 'Loop' or not only_loops)
        assert all(problem.startswith('NonZero gives as many elements as the image decides') for problem in problems)


class TestForeignOperators:
    def test_found(self):
        model = model_of([helper.make_node('MMCVRoIAlign', ['image'], ['out'], domain='mmcv')], domains=('', 'mmcv'))
        (problem,) = foreign_operators(model)
        assert 'mmcv::MMCVRoIAlign is not a standard ONNX operator; write a rewriter' in problem

    def test_found_in_a_subgraph(self):
        model = model_of(branch(helper.make_node('Custom', ['image'], ['y'], domain='mine')), domains=('', 'mine'))
        assert len(foreign_operators(model)) == 1

    def test_named_once_and_the_default_domain_has_two_names(self):
        nodes = [helper.make_node('A', ['image'], [f'x{i}'], domain='mine') for i in range(3)]
        nodes += [
            helper.make_node('Identity', ['image'], ['out'], domain='ai.onnx'),
            helper.make_node('Neg', ['image'], ['z']),
        ]
        assert len(foreign_operators(model_of(nodes, domains=('', 'mine')))) == 1

    def test_contrib_operators_are_not_standard(self):
        nodes = [helper.make_node('FusedConv', ['image'], ['out'], domain='com.microsoft')]
        assert len(foreign_operators(model_of(nodes, domains=('', 'com.microsoft')))) == 1


class TestLostInputs:
    """Traced code, not made graphs: each is a way in which an image gets lost."""

    def problems(self, export, function, *args, outputs=('out',)):
        names = ['image', 'scale_factor', 'ori_shape'][: len(args)]
        return lost_inputs(export(function, *args, outputs=outputs, dynamic=True).model, names)

    def test_nothing_lost(self, export, image):
        scale = torch.ones(1, 2)
        assert self.problems(export, lambda x, s: x.mean((2, 3)) * s[:, :1], image(), scale) == []

    def test_image_bound_by_partial(self, export, image):
        """Keyword arguments are bound so; an image bound that way is a constant."""

        def network(scale, x=None):
            return x.mean((2, 3)) * scale

        scale = torch.ones(1, 3)
        graph = export(functools.partial(network, x=image()), scale)
        del graph.model.graph.input[0]
        problems = lost_inputs(graph.model, ['image'])
        assert ["has lost its input 'image': it was bound as a constant" in problem for problem in problems] == [True]

    def test_keyword_arguments_that_are_not_images_may_be_bound(self, export, image):
        function = functools.partial(lambda x, factor, names: x * factor, factor=2.0, names=('a',))
        assert self.problems(export, function, image()) == []

    @pytest.mark.parametrize(
        'freeze',
        [
            lambda x: torch.from_numpy(x.numpy().copy()),
            lambda x: torch.tensor(x.tolist()),
            lambda x: x.new_full((1,), x.max().item()),
            lambda x: copy.deepcopy(x),
            lambda x: torch.zeros_like(x),  # has the image's shape, and nothing else of it
            lambda x: torch.ones(x.shape[2]),
        ],
    )
    def test_frozen_output(self, export, image, freeze, needs_torch):
        if 'deepcopy' in freeze.__code__.co_names:
            needs_torch(2, 3, 'a traced value that may be copied')
        problems = self.problems(export, lambda x: (x + 1, freeze(x) * 2), image(), outputs=('dets', 'labels'))
        assert problems == ["the output 'labels' does not depend on the image: it was frozen while tracing"]

    def test_count_may_depend_on_a_shape_alone(self, export, image):
        def function(x):
            found = (x.flatten() > 100).nonzero()
            return found.float(), torch._shape_as_tensor(found)[:1]

        assert self.problems(export, function, image(), outputs=('dets', 'num_dets')) == []
        frozen = self.problems(export, lambda x: (x, torch.ones(1)), image(), outputs=('dets', 'num_dets'))
        assert len(frozen) == 1
        answers = export(lambda x: (x, torch.ones(1)), image(), outputs=('dets', 'num_dets')).model
        assert lost_inputs(answers, ['image'], fixed_counts=True) == []
        assert len(lost_inputs(answers, ['image'], counts=(), fixed_counts=True)) == 1

    def test_input_that_nothing_depends_on(self, export, image):
        model = model_of([helper.make_node('Neg', ['image'], ['out'])], inputs=('image', 'scale_factor'))
        assert lost_inputs(model, ['image', 'scale_factor']) == ["no output depends on the input 'scale_factor'"]

    def test_dependency_inside_a_subgraph(self):
        model = model_of(branch(helper.make_node('Neg', ['image'], ['y'])))
        assert lost_inputs(model, ['image']) == []

    def test_metainfo_that_is_copied_is_lost(self, export, image, needs_torch):
        """``set_metainfo`` copies deeply, and the copy of a traced value is a constant; ``set_field`` does not."""
        needs_torch(2, 3, 'a traced value that may be copied')
        from mmdet.structures import DetDataSample

        from mmdeploy_lite.tasks.base import ModelWrapper

        def copied(x, s):
            sample = DetDataSample(metainfo=dict(scale_factor=s[0]))
            return x.mean((2, 3)) * sample.scale_factor[0]

        def kept(x, s):
            sample = ModelWrapper.set_metainfo(DetDataSample(), scale_factor=s[0])
            return x.mean((2, 3)) * sample.scale_factor[0]

        assert self.problems(export, kept, image(), torch.ones(1, 2)) == []
        assert len(self.problems(export, copied, image(), torch.ones(1, 2))) == 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.bn = nn.BatchNorm2d(3)
        self.drop = nn.Dropout()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.drop(self.bn(self.conv(x))))


class Network(nn.Module):
    """Ends in numbers that depend on the image; what happens in between is given."""

    def __init__(self, body, **modules):
        super().__init__()
        self.stem = Block()
        for name, module in modules.items():
            setattr(self, name, module)
        self.body = body

    def forward(self, x):
        return self.body(self, self.stem(x)).mean((2, 3))


def audit(export, image, network):
    """Names of the modules that are lost and matter."""
    torch.manual_seed(0)
    network = network.eval().requires_grad_(False)
    recorder = ScopeRecorder(network)
    graph = export(network, image(0), recorder=recorder)
    images = [image(0), image(1)]
    suspects = lost_modules(recorder, graph.model)
    return [recorder.name(module) for module in live_modules(network, suspects, lambda i: [network(images[i])])], [
        recorder.name(module) for module in suspects
    ]


def detour(x):
    return torch.from_numpy(np.asarray(x))


class TestLostModules:
    def test_healthy_network(self, export, image):
        assert audit(export, image, Network(lambda net, x: net.head(x), head=Block())) == ([], [])

    def test_output_detoured_through_numpy(self, export, image):
        lost, _ = audit(
            export, image, Network(lambda net, x: x + detour(net.head(x)), head=nn.Conv2d(3, 3, 3, padding=1))
        )
        assert lost == ['head']

    def test_only_the_frozen_ones_are_named(self, export, image):
        network = Network(
            lambda net, x: net.late(x + detour(net.early(x))), early=nn.Conv2d(3, 3, 1), late=nn.Conv2d(3, 3, 1)
        )
        assert audit(export, image, network)[0] == ['early']

    def test_batch_norm_is_folded_and_not_lost(self, export, image):
        assert audit(export, image, Network(lambda net, x: x, unused=nn.BatchNorm2d(3))) == ([], [])

    def test_auxiliary_module_whose_output_is_not_used(self, export, image):
        def body(net, x):
            net.auxiliary(x)
            return x

        lost, suspects = audit(export, image, Network(body, auxiliary=nn.Conv2d(3, 3, 1)))
        assert (lost, suspects) == ([], ['auxiliary'])

    def test_module_that_computes_a_constant(self, export, image):
        def body(net, x):
            return x + net.embed(torch.arange(3)).view(1, 3, 1, 1)

        assert audit(export, image, Network(body, embed=nn.Embedding(3, 1)))[0] == []

    def test_twins_that_the_exporter_merged(self, export, image):
        def body(net, x):
            return net.one(x) + net.two(x)

        network = Network(body, one=nn.Sigmoid(), two=nn.Sigmoid())
        network.stem.act.inplace = False  # what writes in place is not merged
        lost, suspects = audit(export, image, network)
        assert lost == []
        assert len(suspects) == 1

    def test_twin_that_is_detoured_is_lost_when_the_other_is_no_twin(self, export, image):
        def body(net, x):
            return net.one(x) + detour(net.two(x + 1))

        assert audit(export, image, Network(body, one=nn.MaxPool2d(2), two=nn.MaxPool2d(2)))[0] == ['two']

    def test_names_that_end_in_numbers(self, export, image):
        """The exporter numbers what runs again; ``conv_2`` is not ``conv_1`` run again."""

        def body(net, x):
            return net.conv_1(x) + detour(net.conv_2(x)) + net.conv(x)

        network = Network(body, conv=nn.Conv2d(3, 3, 1), conv_1=nn.Conv2d(3, 3, 1), conv_2=nn.Conv2d(3, 3, 1))
        assert audit(export, image, network)[0] == ['conv_2']

    def test_numbered_module_beside_one_without_a_number(self, export, image):
        def body(net, x):
            return detour(net.conv(x)) + net.conv_1(x)

        network = Network(body, conv=nn.Conv2d(3, 3, 1), conv_1=nn.Conv2d(3, 3, 1))
        assert audit(export, image, network)[0] == ['conv']

    def test_module_that_runs_on_several_levels(self, export, image):
        def body(net, x):
            small = nn.functional.avg_pool2d(x, 2)
            return net.block(x) + nn.functional.interpolate(net.block(small), x.shape[2:])

        assert audit(export, image, Network(body, block=Block())) == ([], [])

    def test_modules_in_lists(self, export, image):
        def body(net, x):
            for index, level in enumerate(net.levels):
                x = x + (detour(level(x)) if index == 1 else level(x))
            return x

        levels = nn.ModuleList([nn.Sequential(nn.Conv2d(3, 3, 1)) for _ in range(3)])
        assert audit(export, image, Network(body, levels=levels))[0] == ['levels.1.0']

    def test_module_that_returns_several(self, export, image):
        class Pair(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(3, 1, 1))

            def forward(self, x):
                return x * self.weight, dict(half=x / 2)

        def body(net, x):
            one, two = net.pair(x)
            return x + detour(one) + detour(two['half'])

        assert audit(export, image, Network(body, pair=Pair()))[0] == ['pair']

    def test_output_that_is_no_float(self, export, image):
        class Labels(nn.Module):
            def forward(self, x):
                return x.argmax(dim=1, keepdim=True)

        assert audit(export, image, Network(lambda net, x: x + detour(net.labels(x)), labels=Labels()))[0] == ['labels']

    @pytest.mark.parametrize(('lost', 'runs'), [((), 2), ((5,), 10)])
    def test_many_suspects_take_few_runs(self, image, lost, runs):
        def body(net, x):
            outputs = [head(x) for head in net.heads]
            return sum((detour(outputs[index]) for index in lost), x)

        network = Network(body, heads=nn.ModuleList([nn.Conv2d(3, 3, 1) for _ in range(8)])).eval()
        images = [image(0), image(1)]
        counted = []

        def run(index):
            counted.append(index)
            with torch.no_grad():
                return [network(images[index])]

        assert live_modules(network, network.heads, run) == [network.heads[index] for index in lost]
        assert len(counted) <= runs

    def test_hooks_are_removed(self, export, image):
        network = Network(lambda net, x: x + detour(net.head(x)), head=nn.Conv2d(3, 3, 1))
        before = [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in network.modules()]
        audit(export, image, network)
        assert [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in network.modules()] == before
        with pytest.raises(ZeroDivisionError), ScopeRecorder(network) as recorder:
            1 / 0  # noqa: B018
        network(image())
        assert recorder.leaves == {}


def test_invalid_model():
    assert invalid_model(model_of([helper.make_node('Neg', ['image'], ['out'])])) == []
    (problem,) = invalid_model(model_of([helper.make_node('Neg', ['missing'], ['out'])]))
    assert problem.startswith('the ONNX checker rejects the graph: ') and '\n' not in problem
    (problem,) = invalid_model(model_of([helper.make_node('Concat', ['image'], ['out'])]))  # without its axis
    assert 'axis' in problem
    assert isinstance(onnx.__version__, str)
