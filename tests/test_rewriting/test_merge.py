"""Rewriters from config: overriding, adding and dropping, and what is wrong with an entry."""

from __future__ import annotations

import pytest
from mmengine.registry import Registry

from mmdeploy_lite.errors import RewriteError
from mmdeploy_lite.rewriting import FunctionRewriter, build_rewriters, merge_rewriters

DEFAULT = {'a': {'type': 'A', 'x': 1, 'y': 2}, 'b': {'type': 'B'}}


@pytest.mark.parametrize(
    ('layer', 'expected'),
    [
        (None, {'type': 'A', 'x': 1, 'y': 2}),
        ({}, {'type': 'A', 'x': 1, 'y': 2}),
        ({'a': {'x': 5}}, {'type': 'A', 'x': 5, 'y': 2}),
        ({'a': {'type': 'A', 'x': 5}}, {'type': 'A', 'x': 5, 'y': 2}),
        ({'a': {'type': 'New', 'z': 3}}, {'type': 'New', 'z': 3}),
        ({'a': None}, None),
    ],
)
@pytest.mark.parametrize('place', [0, 1, 2])
def test_layer_over_the_default(layer, expected, place):
    layers = [DEFAULT, None, None, None]
    layers[place + 1] = layer
    merged = merge_rewriters(layers)
    assert merged.get('a') == expected
    assert merged['b'] == {'type': 'B'}


def test_later_layer_wins():
    layers = [DEFAULT, {'a': {'x': 2}}, {'a': {'x': 3, 'y': 3}}, {'a': {'x': 4}}]
    assert merge_rewriters(layers)['a'] == {'type': 'A', 'x': 4, 'y': 3}


def test_dropped_and_added_again():
    assert 'a' not in merge_rewriters([DEFAULT, {'a': {'x': 2}}, {'a': None}])
    assert merge_rewriters([DEFAULT, {'a': None}, {'a': {'type': 'A', 'y': 9}}])['a'] == {'type': 'A', 'y': 9}
    assert merge_rewriters([DEFAULT, {'new': None}]) == DEFAULT  # dropping what is not there


def test_order_of_keys_is_that_of_first_mention():
    assert list(merge_rewriters([DEFAULT, {'c': {'type': 'C'}, 'a': {'x': 2}}])) == ['a', 'b', 'c']


def test_layers_are_not_changed():
    layers = [{'a': {'type': 'A', 'x': 1}}, {'a': {'x': 2}}]
    merge_rewriters(layers)['a']['x'] = 3
    assert layers == [{'a': {'type': 'A', 'x': 1}}, {'a': {'x': 2}}]


@pytest.mark.parametrize('entry', ['MyNMS', 5, ['MyNMS'], False])
def test_entry_that_is_no_dict(entry):
    with pytest.raises(RewriteError, match=r"rewriters\.a is .*; write dict\(type='...'"):
        merge_rewriters([DEFAULT, {'a': entry}])


def test_entry_without_a_type_and_nothing_to_update():
    with pytest.raises(RewriteError, match=r'rewriters\.batched has no type .* \(there are: a, b\)'):
        merge_rewriters([DEFAULT, {'batched': {'x': 1}}])
    with pytest.raises(RewriteError, match=r'rewriters\.a has no type'):
        merge_rewriters([DEFAULT, {'a': None}, {'a': {'x': 1}}])


@pytest.mark.parametrize('layer', [['a'], 'a', 5])
def test_layer_that_is_no_dict(layer):
    with pytest.raises(RewriteError, match='rewriters is .*; write dict'):
        merge_rewriters([DEFAULT, layer])


@pytest.fixture
def registry() -> Registry:
    registry = Registry('test rewriter', scope='mmdeploy_lite')

    @registry.register_module()
    class Good(FunctionRewriter):
        target = 'math.sqrt'

        def __init__(self, x: int = 0) -> None:
            self.x = x

    @registry.register_module()
    class NoTarget(FunctionRewriter):
        pass

    @registry.register_module()
    class NoRewriter:
        target = targets = ('math.sqrt',)

        def __call__(self):
            pass

    return registry


def test_build(registry):
    built = build_rewriters({'one': {'type': 'Good', 'x': 3}, 'two': {'type': registry.get('Good')}}, registry)
    assert list(built) == ['one', 'two']
    assert (built['one'].x, built['two'].x) == (3, 0)
    assert built['one'].targets == ('math.sqrt',)


@pytest.mark.parametrize(
    ('config', 'says'),
    [
        ({'type': 'Unknown'}, r"rewriters\.k: 'Unknown' is not registered; add the module .* custom_imports"),
        ({'type': 'mmdet.Unknown'}, r"'mmdet\.Unknown' is not registered"),
        ({'type': None}, "'None' is not registered"),
        ({'type': 5}, "'5' is not registered"),
        ({'type': 'Good', 'wrong': 1}, r"rewriters\.k: Good cannot take \{'wrong': 1\}"),
        ({'type': 'NoTarget'}, r'rewriters\.k: NoTarget is not a FunctionRewriter with a target'),
        ({'type': 'NoRewriter'}, r'rewriters\.k: NoRewriter is not a FunctionRewriter with a target'),
        ({'type': dict}, r'rewriters\.k: dict is not a FunctionRewriter with a target'),
    ],
)
def test_build_says_what_is_wrong(registry, config, says):
    with pytest.raises(RewriteError, match=says):
        build_rewriters({'k': config}, registry)


def test_built_in_rewriters_are_found_without_an_import():
    from mmdeploy_lite.registry import REWRITERS

    built = build_rewriters({'squeeze': {'type': 'Squeeze'}}, REWRITERS)
    assert built['squeeze'].targets == ('torch.squeeze', 'torch.Tensor.squeeze')
