"""What is 0 in every row is not multiplied, and nothing else is left out."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shakeproof.model.builder import Unsupported, _check_size
from shakeproof.operators import Conv, Linear, SlidingWindow, Unrolled
from shakeproof.operators import active as products
from shakeproof.operators import affine as matrices
from shakeproof.operators import conv as convolution
from tests.operators.test_conv import HEIGHT, WIDTH, drawn, plain

pytestmark = pytest.mark.usefixtures("whoever_multiplies")

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
lines = st.tuples(st.integers(1, 2), st.just(1))
sliding_windows = st.builds(SlidingWindow, pairs, pairs, lines, st.tuples(*[st.integers(0, 3)] * 4)).filter(
    lambda window: min(window.output_size(HEIGHT, WIDTH)) > 0 and not window.is_pointwise
)
shares = st.sampled_from([0.0, 0.02, 0.3, 0.7])


def some_off(x: torch.Tensor, share: float, seed: int) -> torch.Tensor:
    """The same with all but a share of its entries 0 in every row; of those that are left, most are 0 in some rows."""
    generator = torch.Generator().manual_seed(seed)
    on = torch.rand(x.shape[1:], generator=generator) < share
    now = torch.rand(x.shape, generator=generator) < 0.5
    return x * on * now


def always_taken_apart():
    return patch.multiple(convolution, MANY_PICTURES=1, worthwhile_share=lambda pictures, channels: 1.0)


@settings(deadline=None)
@given(sliding_windows, st.sampled_from([(1, 3, 4), (1, 12, 5)]), shares, st.integers(0, 2**32), st.integers(1, 40))
def test_convolutions_of_what_is_on_are_convolutions(window, sizes, share, seed, rows):
    conv, x = drawn(window, sizes, seed, rows, whole=True)
    x = some_off(x[:, :1], share, seed)
    with (
        always_taken_apart(),
        patch.object(convolution, "multiply_positions", wraps=products.multiply_positions) as multiplied,
    ):
        found = conv.apply(x)
    assert multiplied.called
    assert torch.equal(found, plain(conv, x))


@pytest.mark.parametrize("block", [1, 1000])
def test_blocks_of_pictures_are_as_good_as_all(block):
    conv, x = drawn(SlidingWindow((3, 3), pads=(1, 1, 1, 1)), (1, 12, 5), 0, 9, whole=True)
    x = some_off(x[:, :1], 0.4, 0)
    out = torch.empty(9, HEIGHT, WIDTH, 5, dtype=torch.float64)
    on = products.active(x.flatten(1), 1.0)
    with patch.multiple(products, BLOCK_BYTES=block):
        products.multiply_positions(conv.window, conv.weight[0].t().contiguous(), conv.bias, x[:, 0], out, on)
    assert torch.equal(out.unsqueeze(1), plain(conv, x))


def whole(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-8, 9, shape, generator=generator).double()


@pytest.mark.parametrize("rows", [1, 7, 100])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 1.0])
def test_products_with_what_is_on_are_products(rows, share):
    weight, bias, x = whole(64, 512), whole(64), some_off(whole(rows, 512), share, rows)
    expected = x @ weight.t() + bias
    assert torch.equal(Linear(weight, bias).apply(x), expected)
    assert torch.equal(Linear(weight, bias).apply(x.view(rows, 1, 512)), expected.view(rows, 1, 64))
    assert torch.equal(Unrolled(weight, bias, (1, 4, 4, 4)).apply(x.view(rows, 1, 8, 8, 8)).flatten(1), expected)


def test_an_input_that_wakes_up_in_the_last_row_is_multiplied():
    weight, bias, x = whole(64, 512), whole(64), some_off(whole(100, 512), 0.1, 0)
    x[-1, 300:310] = 5.0
    assert torch.equal(Linear(weight, bias).apply(x), x @ weight.t() + bias)


def test_active_inputs_are_those_of_any_row_if_they_are_few():
    x = torch.zeros(100, 8)
    assert products.active(x, 0.5).tolist() == []
    x[99, 3] = x[0, 5] = -1.0
    x[50, 7] = torch.nan
    assert products.active(x, 0.5).tolist() == [3, 5, 7]
    assert products.active(x, 0.375).tolist() == [3, 5, 7]
    assert products.active(x, 0.25) is None
    assert products.active(torch.ones(2, 8), 0.9) is None


def test_few_pictures_and_few_channels_are_worth_it_only_if_little_is_on():
    assert products.worthwhile_share(32, 64) < 0.25 < products.worthwhile_share(1000, 64) < 0.75
    assert (
        products.worthwhile_share(1000, 16) < products.worthwhile_share(1000, 64) < products.worthwhile_share(1000, 128)
    )


@pytest.mark.parametrize("odd", [torch.inf, torch.nan])
def test_a_weight_that_makes_something_of_nothing_is_not_left_out(odd):
    weight, bias = whole(64, 512), whole(64)
    weight[5, 7] = odd
    assert Linear(weight, bias).apply(torch.zeros(3, 512).double())[:, 5].isnan().all()
    conv, x = drawn(SlidingWindow((3, 3)), (1, 12, 5), 0, 40, whole=True)
    conv.weight[0, 2, 4] = odd
    with always_taken_apart():
        assert conv.apply(0 * x[:, :1])[..., 2].isnan().all()


def test_no_rows_make_no_rows():
    assert Linear(whole(64, 512), whole(64)).apply(torch.empty(0, 3, 512).double()).shape == (0, 3, 64)
    assert Linear(whole(3, 4), whole(3)).apply(torch.empty(0, 4).double()).shape == (0, 3)
    with pytest.raises(Unsupported, match="400000000 entries"):
        _check_size(Linear(whole(4, 1), whole(4)), [torch.Size((10**8, 1))])


@pytest.mark.parametrize("size", [2**10, 2**15, 2**23])
def test_columns_are_those_of_the_matrix_whatever_its_size(size):
    with patch.multiple(matrices, LARGE_MATRIX=size):
        linear = Linear(whole(64, 512), whole(64))
        given = matrices.Entries(torch.tensor([[3], [511]]), torch.tensor([[2.0], [-1.0]]).double())
        found = linear.of_entries(given, 0, [torch.Size([512])])
        assert found is not None
        assert torch.equal(found.value, torch.stack([2 * linear.weight[:, 3], -linear.weight[:, 511]]))


def test_few_outputs_and_small_matrices_are_multiplied_as_they_are():
    with patch.object(matrices, "active", side_effect=AssertionError):
        for outputs, inputs in ((63, 1024), (100, 100), (1024, 1025)):
            linear = Linear(whole(outputs, inputs), whole(outputs))
            assert linear.apply(torch.zeros(1, inputs).double()).shape == (1, outputs)


def test_kernels_with_gaps_across_are_not_taken_apart():
    conv, x = drawn(SlidingWindow((3, 3), dilations=(1, 2)), (1, 12, 5), 0, 40, whole=True)
    x = some_off(x[:, :1], 0.2, 0)
    assert isinstance(conv, Conv)
    with always_taken_apart():
        assert torch.equal(conv.apply(x), plain(conv, x))
