"""Swapping in and out: every object is what it was, whatever happens in between."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from mmdeploy_lite.errors import DeployError, RewriteError
from mmdeploy_lite.rewriting import FunctionRewriter, RewriteContext


def rewriter(*targets: str, add: object = 1) -> FunctionRewriter:
    """Adds to what the original answers."""

    class Adds(FunctionRewriter):
        target = targets

        def __call__(self, origin, *args):
            return origin(*args) + add

    return Adds()


def snapshot(*modules: ModuleType) -> dict[tuple[str, str], object]:
    """Every attribute of the modules and of the classes defined in them, as it is stored."""
    found: dict[tuple[str, str], object] = {}
    for module in modules:
        found.update({(module.__name__, name): value for name, value in vars(module).items()})
        for cls in [value for value in vars(module).values() if isinstance(value, type)]:
            found.update({(f'{module.__name__}.{cls.__name__}', name): value for name, value in vars(cls).items()})
    return found


def assert_same(before: dict, after: dict) -> None:
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] is not after[name]] == []


def test_function_is_replaced_where_it_is_defined_and_wherever_it_was_imported_by_name(lib):
    ops, user = lib('ops'), lib('user')
    before = snapshot(ops, user)
    with RewriteContext({'double': rewriter('engine_lib.ops.double')}):
        assert (ops.double(5), user.use(5), user.use_alias(5)) == (11, 11, 11)
        assert ops.triple(5) == 15
    assert (ops.double(5), user.use(5), user.use_alias(5)) == (10, 10, 10)
    assert_same(before, snapshot(ops, user))


def test_target_named_through_a_reexport_is_replaced_where_it_is_defined_too(lib):
    ops, user = lib('ops'), lib('user')
    before = snapshot(ops, user)
    with RewriteContext({'double': rewriter('engine_lib.user.twice')}):
        assert (ops.double(5), user.use(5)) == (11, 11)
    assert_same(before, snapshot(ops, user))


def test_module_first_imported_inside_is_replaced_and_restored(lib):
    ops = lib('ops')
    original = ops.double
    with RewriteContext({'double': rewriter('engine_lib.ops.double')}):
        late = lib('late')
        assert late.use(5) == 11
    assert late.double is original
    assert late.use(5) == 10


def test_object_kept_from_inside_is_the_original_afterwards(lib):
    ops = lib('ops')
    with RewriteContext({'double': rewriter('engine_lib.ops.double')}) as context:
        kept = [ops.double]  # as a default argument, a partial, or a registry holds it
        assert kept[0](5) == 11
    assert kept[0](5) == 10
    assert sum(context.fired['double'].values()) == 1


def test_module_that_defines_a_rewriter_keeps_the_original(lib):
    mine, user = lib('mine'), lib('user')
    with RewriteContext({'double': mine.Mine()}):
        assert user.use(5) == 110  # not for ever: the module's own `double` is the original


def test_module_that_defines_a_rewriter_of_something_else_is_as_any_other(lib):
    """A user's one file with a head and a rewriter: what the head calls is replaced."""
    mine = lib('mine')

    class Other(mine.Mine):
        target = 'engine_lib.ops.triple'

    with RewriteContext({'double': rewriter('engine_lib.ops.double'), 'triple': Other()}):
        assert lib('ops').triple(5) == 111


def test_two_rewriters_of_one_target_that_call_it_by_name(lib):
    mine, ops = lib('mine'), lib('ops')
    before = snapshot(ops, mine)
    with RewriteContext({'adds': rewriter('engine_lib.ops.double'), 'mine': mine.Mine()}):
        assert ops.double(5) == 111
    with RewriteContext({'mine': mine.Mine(), 'adds': rewriter('engine_lib.ops.double')}):
        assert ops.double(5) == 111
    assert_same(before, snapshot(ops, mine))


def test_subclass_of_a_rewriter_keeps_the_original_in_its_bases_module(lib):
    mine, user = lib('mine'), lib('user')

    class Derived(mine.Mine):
        pass

    with RewriteContext({'double': Derived()}):
        assert user.use(5) == 110


@pytest.mark.parametrize(
    ('method', 'plain', 'changed'),
    [('scale', 50, 51), ('still', 5, 6), ('named', 'Child:5', 'Child:5!'), ('__call__', 50, 51)],
)
@pytest.mark.parametrize('owner', ['Base', 'Child'])
def test_methods_of_every_kind(lib, method, plain, changed, owner):
    ops = lib('ops')
    before = snapshot(ops)
    add = '!' if method == 'named' else 1
    with RewriteContext({'method': rewriter(f'engine_lib.ops.{owner}.{method}', add=add)}) as context:
        child = ops.Child()
        call = child if method == '__call__' else getattr(child, method)
        assert call(5) == changed
        if method in ('still', 'named'):
            assert getattr(ops.Child, method)(5) == changed
        base = ops.Base() if method == '__call__' else getattr(ops.Base(), method)
        assert str(base(5)) in (str(plain), 'Base:5') if owner == 'Child' else base(5) != plain
    assert_same(before, snapshot(ops))
    assert sum(context.fired['method'].values()) >= 1


def test_inherited_method_is_deleted_again(lib):
    ops = lib('ops')
    with RewriteContext({'method': rewriter('engine_lib.ops.Child.scale')}):
        assert 'scale' in vars(ops.Child)
        assert ops.Base().scale(5) == 50
    assert 'scale' not in vars(ops.Child)


@pytest.mark.parametrize('owner', ['Base', 'Child'])
def test_property(lib, owner):
    ops = lib('ops')
    before = snapshot(ops)
    with RewriteContext({'size': rewriter(f'engine_lib.ops.{owner}.size', add=6)}) as context:
        assert ops.Child().size == 7
        assert ops.Base().size == (7 if owner == 'Base' else 1)
    assert ops.Child().size == 1
    assert_same(before, snapshot(ops))
    assert sum(context.fired['size'].values()) == (2 if owner == 'Base' else 1)


def test_property_of_a_builtin_type():
    with RewriteContext({'shape': rewriter('torch.Tensor.shape', add=(9,))}):
        assert torch.zeros(2, 3).shape == (2, 3, 9)
    assert torch.zeros(2, 3).shape == (2, 3)
    assert 'shape' not in vars(torch.Tensor)


def test_method_of_an_instance_gets_self_after_origin(lib):
    ops = lib('ops')
    seen = []

    class Sees(FunctionRewriter):
        target = 'engine_lib.ops.Base.scale'

        def __call__(self, origin, instance, x):
            seen.append(instance)
            return origin(instance, x)

    child = ops.Child()
    with RewriteContext({'sees': Sees()}):
        assert child.scale(2) == 20
    assert seen == [child]


def test_nested_contexts(lib):
    ops, user = lib('ops'), lib('user')
    before = snapshot(ops, user)
    with RewriteContext({'outer': rewriter('engine_lib.ops.double', 'engine_lib.ops.Child.scale', add=1)}) as outer:
        with RewriteContext(
            {'inner': rewriter('engine_lib.ops.double', 'engine_lib.ops.Child.scale', add=1000)}
        ) as inner:
            assert user.use(5) == 1011  # the inner one's origin is the outer one
            assert ops.Child().scale(1) == 1011
            late = lib('late')
        assert user.use(5) == 11
        assert late.use(5) == 11
        assert ops.Child().scale(1) == 11
    assert late.use(5) == 10
    assert_same(before, snapshot(ops, user))
    assert (sum(outer.fired['outer'].values()), sum(inner.fired['inner'].values())) == (5, 2)


def test_two_rewriters_of_one_target_nest_in_their_order(lib):
    ops = lib('ops')
    before = snapshot(ops)

    class Tens(FunctionRewriter):
        target = ('engine_lib.ops.double', 'engine_lib.ops.Child.scale')

        def __call__(self, origin, *args):
            return 10 * origin(*args)

    with RewriteContext({'adds': rewriter(*Tens.target), 'tens': Tens()}):
        assert ops.double(5) == 110
        assert ops.Child().scale(1) == 110
    assert_same(before, snapshot(ops))


@pytest.mark.parametrize('error', [ValueError, KeyboardInterrupt])
def test_exception_inside_restores(lib, error):
    ops, user = lib('ops'), lib('user')
    before = snapshot(ops, user)
    with (
        pytest.raises(error),
        RewriteContext({'double': rewriter('engine_lib.ops.double', 'engine_lib.ops.Child.scale')}),
    ):
        raise error
    assert_same(before, snapshot(ops, user))


@pytest.mark.parametrize(
    ('path', 'says'),
    [
        ('engine_lib.ops.gone', "'engine_lib.ops' has no function or method 'gone'"),
        ('engine_lib.ops.Base.gone', "'engine_lib.ops.Base' has no function or method 'gone'"),
        ('engine_lib.ops.Gone.scale', "'engine_lib.ops' has no module or class 'Gone'"),
        ('engine_lib.gone.f', "'engine_lib' has no module or class 'gone'"),
        ('engine_lib.ops.double.f', "'engine_lib.ops' has no module or class 'double'"),
        ('no_such_package.f', "the package 'no_such_package' is not installed"),
        ('engine_lib.ops', "'engine_lib' has no function or method 'ops'"),
        ('double', 'is not a dotted path'),
        ('engine_lib..double', 'is not a dotted path'),
        ('', 'is not a dotted path'),
    ],
)
def test_target_that_does_not_exist(lib, path, says):
    ops = lib('ops')
    before = snapshot(ops)
    rewriters = {'good': rewriter('engine_lib.ops.double'), 'bad': rewriter('engine_lib.ops.triple', path)}
    with RewriteContext(rewriters) as context:  # built in: skipped and recorded
        assert ops.double(1) == 3
        assert ops.triple(1) == 4
    assert list(context.skipped) == [path]
    assert context.never_fired() == []
    assert says in context.skipped[path]
    assert_same(before, snapshot(ops))

    entered = RewriteContext(rewriters, required=['bad'])  # named by the user: an error, and nothing stays
    with pytest.raises(RewriteError, match="rewriter 'bad'") as caught:
        entered.__enter__()
    assert says in str(caught.value)
    assert_same(before, snapshot(ops))


@pytest.mark.parametrize(
    ('path', 'says'),
    [
        ('engine_lib.ops.Child.constant', 'is a int, not a function, method or property'),
        ('engine_lib.ops.Child', 'is a class, not a function, method or property'),
        ('engine_lib.broken.f', 'no driver'),
    ],
)
def test_entering_fails_midway_and_nothing_stays_replaced(lib, path, says):
    ops = lib('ops')
    before = snapshot(ops)
    rewriters = {'first': rewriter('engine_lib.ops.double', 'engine_lib.ops.Child.scale'), 'second': rewriter(path)}
    with pytest.raises(DeployError, match=says), RewriteContext(rewriters):
        pytest.fail('must not be entered')
    assert_same(before, snapshot(ops))


def test_context_cannot_be_entered_twice_at_once_but_again_later(lib):
    ops = lib('ops')
    context = RewriteContext({'double': rewriter('engine_lib.ops.double')})
    with context:
        with pytest.raises(RewriteError, match='already entered'):
            context.__enter__()
        assert ops.double(1) == 3
    with context:
        assert ops.double(1) == 3
    assert ops.double(1) == 2


def test_attribute_that_a_module_makes_when_asked_is_not_left_behind(lib):
    lazy = lib('lazy')
    with RewriteContext({'made': rewriter('engine_lib.lazy.made')}):
        assert lazy.made(1) == 2
    assert 'made' not in vars(lazy)
    assert lazy.made(1) == 1


def test_builtin_method_of_a_type(lib):
    import torch

    inherited = 'split' in vars(torch.Tensor)
    raw = torch.Tensor.split

    class First(FunctionRewriter):
        target = 'torch.Tensor.relu'

        def __call__(self, origin, tensor):
            return origin(tensor) + 1

    with RewriteContext({'relu': First()}):
        assert torch.zeros(1).relu().item() == 1
    assert torch.zeros(1).relu().item() == 0
    assert 'relu' not in vars(torch.Tensor)
    assert ('split' in vars(torch.Tensor)) == inherited
    assert torch.Tensor.split is raw


def test_call_sites_are_counted_by_module_and_function(lib):
    ops, user = lib('ops'), lib('user')
    rewriters = {'double': rewriter('engine_lib.ops.double'), 'triple': rewriter('engine_lib.ops.triple')}
    with RewriteContext(rewriters) as context:
        user.use(1), user.use(2), user.use_alias(3), ops.double(4)
    here = f'{__name__}.{sys._getframe().f_code.co_name}'
    assert context.fired['double'] == {'engine_lib.user.use': 2, 'engine_lib.user.use_alias': 1, here: 1}
    assert context.never_fired() == ['triple']


def test_skipped_rewriter_is_not_one_that_never_fired(lib):
    rewriters = {
        'gone': rewriter('engine_lib.ops.gone'),
        'here': rewriter('engine_lib.ops.triple', 'engine_lib.gone.f'),
    }
    with RewriteContext(rewriters) as context:
        pass
    assert context.never_fired() == ['here']


def test_replacement_looks_like_the_original(lib):
    ops = lib('ops')
    with RewriteContext({'double': rewriter('engine_lib.ops.double')}):
        assert (ops.double.__name__, ops.double.__module__) == ('double', 'engine_lib.ops')


def test_no_modules_dictionary_entry_is_needed_to_be_a_module(lib):
    """Libraries put other objects and lazy modules into sys.modules."""
    ops = lib('ops')

    class Lazy(ModuleType):
        def __getattr__(self, name):
            raise AssertionError(f'asked for {name}')

    sys.modules['engine_lib.object'] = object()
    sys.modules['engine_lib.lazy_one'] = Lazy('engine_lib.lazy_one')
    with RewriteContext({'double': rewriter('engine_lib.ops.double')}):
        assert ops.double(1) == 3
