"""Each primitive against the original: in PyTorch inside the context, and as the ONNX graph that it becomes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import mmdeploy_lite.ops  # noqa: F401  (before mmcv and what imports it)
from mmdeploy_lite.export import Exporter, ExportState, TorchExportExporter, TorchScriptExporter, exporting
from mmdeploy_lite.export.allowed import ALLOWED, unknown_warnings
from mmdeploy_lite.registry import REWRITERS
from mmdeploy_lite.rewriting import RewriteContext, build_rewriters, of_exporter

torch.set_num_threads(1)


def image(seed: int, *shape: int) -> Tensor:
    """Normal noise of its own."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slide(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """mmseg's slide inference of a model, as a function of images."""

    def function(inputs: Tensor) -> Tensor:
        from mmseg.models.segmentors import EncoderDecoder

        metas = [dict(img_shape=tuple(inputs.shape[2:])) for _ in range(inputs.shape[0])]
        return EncoderDecoder.slide_inference(model, inputs, metas)

    return function


class Traced:
    """A function of tensors, exported with rewriters in place.

    Args:
        function: takes and returns tensors.
        args: to trace with.
        rewriters: configs by key, or names of types.
        axes: of each argument, the axes whose size may change.
        dynamic: the image's height and width are not fixed.
    """

    exporter: type[Exporter] = TorchScriptExporter

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Tensor],
        rewriters: Mapping[str, Any] | Sequence[str],
        axes: Sequence[Sequence[int]] = (),
        dynamic: bool = False,
    ) -> None:
        if not isinstance(rewriters, Mapping):
            rewriters = {name: {'type': name} for name in rewriters}
        self.function, self.dynamic = function, dynamic
        self.rewriters = build_rewriters(rewriters, REWRITERS)
        if self.exporter.symbolic:
            names = ('InstanceFields', 'Length', 'Nonzero', 'NewTensor')
            always = {name: {'type': name} for name in names}
            self.rewriters |= build_rewriters(always, REWRITERS)
        self.rewriters = of_exporter(self.rewriters, self.exporter.symbolic)

        class Wrapper(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.function = function  # of a module, the weights are the wrapper's, as in an export

            def forward(self, *args: Tensor) -> Any:
                return function(*args)

        wrapper = Wrapper().eval()  # or an export leaves what is in it in training mode
        for rewriter in self.rewriters.values():
            rewriter.prepare(wrapper)

        names = [f'in{index}' for index in range(len(args))]
        dims = {
            name: {axis: f'{name}_{axis}' for axis in which} for name, which in zip(names, axes, strict=False) if which
        }
        with self.context():
            with torch.no_grad():
                outputs = function(*(arg.clone() for arg in args))
            count = len(outputs) if isinstance(outputs, (tuple, list)) else 1
            graph = self.exporter().export(
                wrapper, [arg.clone() for arg in args], names, [f'out{index}' for index in range(count)], dims
            )
        self.model = graph.model
        self.unknown = unknown_warnings(graph.warnings, ALLOWED)
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, 1
        self.session = onnxruntime.InferenceSession(
            graph.model.SerializeToString(), options, providers=['CPUExecutionProvider']
        )

    @contextlib.contextmanager
    def context(self) -> Iterator[RewriteContext]:
        """As an export has it."""
        with RewriteContext(self.rewriters) as context, exporting(ExportState(dynamic=self.dynamic)):
            yield context

    def ops(self) -> list[str]:
        """Types of the graph's nodes, those of subgraphs too."""

        def walk(graph: onnx.GraphProto) -> Iterator[str]:
            for node in graph.node:
                yield node.op_type
                for attribute in node.attribute:
                    for subgraph in [attribute.g, *attribute.graphs]:
                        yield from walk(subgraph)

        return list(walk(self.model.graph))

    def run(self, *args: Tensor) -> list[np.ndarray]:
        """The graph's answer."""
        # an argument that nothing depends on is not an input of the graph
        inputs = {f'in{index}': arg.numpy() for index, arg in enumerate(args)}
        present = {value.name for value in self.session.get_inputs()}
        return self.session.run(None, {name: value for name, value in inputs.items() if name in present})

    def eager(self, *args: Tensor) -> list[np.ndarray]:
        """PyTorch's answer with the rewriters in place."""
        with self.context(), torch.no_grad():
            return arrays(self.function(*(arg.clone() for arg in args)))

    def original(self, *args: Tensor) -> list[np.ndarray]:
        """PyTorch's answer without them."""
        with torch.no_grad():
            return arrays(self.function(*(arg.clone() for arg in args)))

    def check(self, *args: Tensor, atol: float = 0.0, rtol: float = 0.0) -> list[np.ndarray]:
        """All three answer the same, in shape and value; returns the answer."""
        expected = self.original(*args)
        for name, answer in (('PyTorch', self.eager(*args)), ('ONNX Runtime', self.run(*args))):
            assert [value.shape for value in answer] == [value.shape for value in expected], name
            for index, (value, reference) in enumerate(zip(answer, expected, strict=True)):
                assert value.dtype == reference.dtype, (name, index)
                np.testing.assert_allclose(
                    value, reference, rtol=rtol, atol=atol, equal_nan=False, err_msg=f'{name}, output {index}'
                )
        return expected


class Symbolic(Traced):
    """:class:`Traced`, but by ``torch.export``."""

    exporter = TorchExportExporter


def arrays(outputs: Any) -> list[np.ndarray]:
    outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    return [value.numpy() for value in outputs]


@pytest.fixture(scope='session')
def traced() -> type[Traced]:
    """Traces a function with rewriters in place, and compares it with the original: see :class:`Traced`."""
    return Traced


@pytest.fixture(scope='session')
def symbolic(torch_export: None) -> type[Traced]:
    """As ``traced``, by ``torch.export``."""
    return Symbolic


@pytest.fixture(scope='session', params=['traced', 'symbolic'], ids=['tracer', 'torch.export'])
def both(request: pytest.FixtureRequest) -> type[Traced]:
    """``traced``, and then ``symbolic``: for a primitive that both exporters take."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def boxes_of() -> Callable[..., Tensor]:
    """Makes (n, 4) boxes, in clusters that overlap."""

    def make(seed: int, n: int, size: float = 100, low: float = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        centers = torch.rand(max(n // 4, 1), 2, generator=generator) * size + low
        centers = centers[torch.randint(len(centers), (n,), generator=generator)]
        centers = centers + torch.randn(n, 2, generator=generator) * 3
        half = torch.rand(n, 2, generator=generator) * 12 + 3
        return torch.cat([centers - half, centers + half], dim=1)

    return make
