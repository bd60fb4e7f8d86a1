"""The file takes the cheaper of two ways where it is enough, and runs nothing of the other one."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from mmdeploy_lite.export.choices import DOMAIN, choose, close_choices, sink_into_branches, taking_the_second_way
from mmdeploy_lite.export.graphs import all_nodes, all_weights, subgraphs
from mmdeploy_lite.export.operators import count_rows
from mmdeploy_lite.export.optimize import optimize


class TwoWays(nn.Module):
    """Of a dark image the mean; else, the same by a longer way: through two convolutions that undo each other."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Conv2d(3, 1, 1)
        self.longer = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.Conv2d(2, 1, 1, bias=False))
        for layer in self.longer:
            nn.init.constant_(layer.weight, 0.5**0.5)
        self.requires_grad_(False)

    def forward(self, x):
        features = self.shared(x)
        rows = features[0, 0, :, :2]
        longer = self.longer(features)[0, 0, :, :2]
        return choose(x.mean() < 100, [rows, rows.argmax(0)], [longer, longer.argmax(0)])


def answers(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})


def choice_of(model):
    (choice,) = [node for node in model.graph.node if node.op_type == 'If']
    return choice, {item.name: item.g for item in choice.attribute}


@pytest.fixture
def module_and_graph(export, image):
    torch.manual_seed(0)
    module = TwoWays()
    return module, export(module, image(0, 6, 8)).model


def test_both_ways_answer(module_and_graph, image):
    module, graph = module_and_graph
    for made in (graph, optimize(graph)):
        onnx.checker.check_model(made, full_check=True)
        assert {node.domain for node in all_nodes(made.graph)} == {''}
        for x in (image(1, 6, 8), image(1, 6, 8) * 0.1):  # a bright image, and a dark one
            rows = module.shared(x)[0, 0, :, :2]
            got = answers(made, x)
            np.testing.assert_allclose(got[0], rows.numpy(), rtol=1e-5)
            np.testing.assert_array_equal(got[1], rows.argmax(0).numpy())


def test_the_file_follows_the_condition(module_and_graph, image):
    module, graph = module_and_graph
    made = optimize(graph)
    for weight in made.graph.initializer:  # of the longer way: it answers half of what it should
        if list(weight.dims) == [2, 1, 1, 1]:
            weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) / 2, weight.name))
    for x, part in ((image(1, 6, 8), 0.5), (image(1, 6, 8) * 0.1, 1)):
        rows = module.shared(x)[0, 0, :, :2].numpy()
        np.testing.assert_allclose(answers(made, x)[0], rows * part, rtol=1e-5)


def test_what_one_way_alone_needs_is_in_its_branch(module_and_graph):
    made = optimize(module_and_graph[1])
    _, branches = choice_of(made)
    outside = [node.op_type for node in made.graph.node]
    inside = {name: [node.op_type for node in body.node] for name, body in branches.items()}
    assert outside.count('Conv') == 1
    assert inside['else_branch'].count('Conv') == 2 and 'Conv' not in inside['then_branch']
    assert all(ops.count('ArgMax') == 1 for ops in inside.values())


def test_what_both_ways_read_last_is_computed_in_each(export, image):
    weights = torch.linspace(-1, 1, 32).sin().reshape(8, 4)

    def function(x):
        narrow = x[0, 0] @ weights
        return choose(x.mean() < 100, [narrow.argmax(0, keepdim=True)], [(3 * narrow).argmax(0, keepdim=True)])

    made = optimize(export(function, image(0, 6, 8)).model)
    _, branches = choice_of(made)
    assert 'MatMul' not in [node.op_type for node in made.graph.node]
    assert all([node.op_type for node in body.node].count('MatMul') == 1 for body in branches.values())
    for x in (image(1, 6, 8), image(1, 6, 8) * 0.1):
        np.testing.assert_array_equal(answers(made, x)[0], (x[0, 0] @ weights).argmax(0, keepdim=True).numpy())


class SizedInside(TwoWays):
    """The longer way resizes what it made itself, to a size of which a part is read from that."""

    def forward(self, x, size):
        features = self.shared(x)
        longer = torch.cat([self.longer(features)[..., 1:], features[..., :1]], -1)
        longer = nn.functional.interpolate(longer, size=(size[0], longer.shape[3]), mode='bilinear')
        return choose(x.mean() < 100, [features[0, 0, :, :2]], [longer[0, 0, :, :2]])


def test_sizes_in_a_branch_are_known_to_the_checker(export, image):
    torch.manual_seed(0)
    module = SizedInside()
    made = optimize(export(module, image(0, 6, 8), torch.tensor([9, 8]), dynamic=True).model)
    onnx.checker.check_model(made, full_check=True)
    _, branches = choice_of(made)
    assert {'Resize', 'Shape'} <= {node.op_type for node in branches['else_branch'].node}
    names = [tensor.name for tensor in all_weights(made.graph)]
    read = set().union(*(set(node.input) for node in all_nodes(made.graph)))
    assert len(set(names)) == len(names) and set(names) <= read
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=['CPUExecutionProvider'])
    for x, size in ((image(1, 7, 11), [5, 11]), (image(1, 6, 8) * 0.1, [9, 8])):
        got = session.run(None, {'image': x.numpy(), 'scale_factor': np.array(size)})[0]
        np.testing.assert_allclose(got, module(x, torch.tensor(size))[0].numpy(), rtol=1e-4, atol=1e-3)


def test_only_few_numbers_are_copied_into_a_branch(export, image):
    order = torch.arange(3000).flip(0)

    def function(x):
        values = x.flatten()
        longer = (values * 2)[order] / 2
        (chosen,) = choose(x.mean() < 100, [values[:3000, None]], [longer[:, None]])
        return chosen, values[order]

    made = optimize(export(function, image(0, 40, 40), outputs=('a', 'b')).model)
    _, branches = choice_of(made)
    assert [3000] in [list(tensor.dims) for tensor in made.graph.initializer]
    assert all(list(tensor.dims) != [3000] for body in branches.values() for tensor in body.initializer)


def test_before_it_is_optimized_the_branches_hold_nothing(module_and_graph):
    choice, _ = choice_of(module_and_graph[1])
    assert {node.op_type for body in subgraphs(choice) for node in body.node} == {'Identity'}


class Known(TwoWays):
    """The condition follows from a size that does not change."""

    def forward(self, x):
        features = self.shared(x)
        return choose(torch._shape_as_tensor(x)[2] == 6, [features], [self.longer(features)])


def test_of_a_known_choice_the_other_way_is_gone(export, image):
    made = optimize(export(Known(), image(0, 6, 8)).model)
    found = [node.op_type for node in all_nodes(made.graph)]
    assert found.count('Conv') == 1 and 'If' not in found


class Nested(TwoWays):
    """A choice that only the longer way of another one needs."""

    def forward(self, x):
        features = self.shared(x)
        rows = features[0, 0, :, :2]
        longer = self.longer(features)[0, 0, :, :2]
        (inner,) = choose(x.mean() < 200, [rows], [longer])
        return choose(x.mean() < 100, [rows], [inner.relu() - (-inner).relu()])


def test_a_choice_in_a_branch_goes_there_with_its_own(export, image):
    torch.manual_seed(0)
    module = Nested()
    made = optimize(export(module, image(0, 6, 8)).model)
    onnx.checker.check_model(made, full_check=True)
    _, branches = choice_of(made)
    (inner,) = [node for node in branches['else_branch'].node if node.op_type == 'If']
    assert [node.op_type for body in subgraphs(inner) for node in body.node].count('Conv') == 2
    assert [node.op_type for node in made.graph.node].count('Conv') == 1
    for x in (image(1, 6, 8) * 0.1, image(1, 6, 8), image(1, 6, 8) + 200):
        np.testing.assert_allclose(answers(made, x)[0], module.shared(x)[0, 0, :, :2].numpy(), rtol=1e-4)


def test_the_second_way_can_be_had(module_and_graph, image):
    made = optimize(module_and_graph[1])
    before = made.SerializeToString()
    other, deciding = taking_the_second_way(made)
    assert made.SerializeToString() == before and len(deciding) == 1
    dark = image(1, 6, 8) * 0.1
    *outputs, taken = answers(other, dark)
    assert bool(taken) and not bool(answers(other, image(1, 6, 8))[-1])
    np.testing.assert_allclose(outputs[0], answers(made, dark)[0], rtol=1e-5)
    for weight in other.graph.initializer:
        if list(weight.dims) == [2, 1, 1, 1]:
            weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) / 2, weight.name))
    np.testing.assert_allclose(answers(other, dark)[0], answers(made, dark)[0] / 2, rtol=1e-5)


def test_a_graph_without_a_choice_is_left_alone(export, image):
    graph = export(nn.Conv2d(3, 1, 1), image(0, 6, 8)).model
    assert taking_the_second_way(graph) == (graph, [])


def test_a_node_that_also_makes_an_output_stays_outside():
    """Its other result is wanted by one way alone."""
    value, node = helper.make_tensor_value_info, helper.make_node
    model = helper.make_model(
        helper.make_graph(
            [
                node('TopK', ['x', 'two'], ['best', 'places']),
                node('Choose', ['enough', 'best', 'other'], ['y'], domain=DOMAIN, elements=[TensorProto.FLOAT]),
            ],
            'graph',
            [
                value('x', TensorProto.FLOAT, [5]),
                value('other', TensorProto.FLOAT, [2]),
                value('enough', TensorProto.BOOL, []),
            ],
            [value('y', TensorProto.FLOAT, [2]), value('places', TensorProto.INT64, [2])],
            [onnx.numpy_helper.from_array(np.array([2]), 'two')],
        ),
        opset_imports=[helper.make_opsetid('', 17), helper.make_opsetid(DOMAIN, 1)],
        ir_version=8,
    )
    close_choices(model)
    sink_into_branches(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    feeds = {'x': np.float32([0, 3, 1, 2, 0]), 'other': np.float32([7, 8])}
    for enough, best in ((True, [3, 2]), (False, [7, 8])):
        got = session.run(None, {**feeds, 'enough': np.array(enough)})
        np.testing.assert_array_equal(got[0], best)
        np.testing.assert_array_equal(got[1], [1, 3])


class Kept(nn.Module):
    """As many rows as there are positive numbers, and how many these are, from what was chosen."""

    def forward(self, x):
        kept = x[(x > 0).nonzero()[:, 0]]
        ways = [[kept[:, None].repeat(1, 4), kept * factor, (kept * 0).long()] for factor in (1.0, 2.0)]
        rows, numbers, labels = choose(x.sum() < 100, *ways)
        return torch.cat([rows, numbers[:, None]], dim=1)[None], labels[None], count_rows(labels)


def test_the_size_of_what_is_chosen_is_not_that_of_the_traced_image(export):
    """The exporter makes a constant of a size that it takes for known."""
    made = export(Kept(), torch.tensor([-1.0, 2, -3, -4, -5])).model
    for x in ([1.0, 2, 3, -4, 5], [-1.0] * 5, [1.0] * 5):
        x = torch.tensor(x)
        rows, labels, count = answers(made, x)
        np.testing.assert_array_equal(rows[0], np.repeat(x[x > 0].numpy()[:, None], 5, 1))
        assert labels.shape == (1, int(count[0])) == (1, int((x > 0).sum()))
