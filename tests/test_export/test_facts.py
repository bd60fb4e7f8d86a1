"""What is known of a graph, for whoever makes it smaller."""

from __future__ import annotations

import onnx
import torch
from torch import nn

from mmdeploy_lite.export.facts import SMALL, Facts, known_shapes


def test_shapes_are_found_without_the_weights(export, image):
    class Model(nn.Sequential):
        def forward(self, x):
            x = super().forward(x)
            table = self.table[: x.shape[2]]  # a weight that no operator with a weight's shape reads
            return x.reshape(x.shape[0], -1, 4, 2) + table.sum(), x[:, 0] @ table

    model = Model(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 8, 3))
    model.register_buffer('table', torch.arange(1000 * 8, dtype=torch.float32).reshape(1000, 8))
    graph = export(model, image(0, 12, 12), outputs=('a', 'b')).model
    large = [tensor for tensor in graph.graph.initializer if len(tensor.raw_data) > SMALL]
    assert len(large) >= 2
    before = graph.SerializeToString()
    found = known_shapes(graph)
    assert graph.SerializeToString() == before
    inferred = onnx.shape_inference.infer_shapes(graph, data_prop=True).graph
    expected = {value.name: value.type.tensor_type.shape.dim for value in [*inferred.value_info, *inferred.output]}
    assert {name: list(found[name]) for name in expected} == {name: list(dims) for name, dims in expected.items()}
    facts = Facts(graph, found)
    assert [facts.size('a', axis) for axis in range(4)] == [1, 64, 4, 2]
    assert all(facts.constant(tensor.name).shape == tuple(tensor.dims) for tensor in large)
