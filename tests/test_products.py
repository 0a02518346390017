"""Products of matrices: the same whoever multiplies, however matrices lie in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from shakeproof import linalg
from shakeproof.linalg import add_product, empty_products, multiply, with_bias

SIZES = st.integers(1, 40)
# of these, a result has one of the first
LAYOUTS = ("rows", "columns", "rows apart", "columns apart", "every other", "repeated", "overlapping")

pytestmark = pytest.mark.usefixtures("whoever_multiplies")


@pytest.fixture
def openblas(whoever_multiplies):
    if whoever_multiplies != "openblas":
        pytest.skip("this is about OpenBLAS")


def laid_out(matrix: Tensor, layout: str) -> Tensor:
    """The same entries, but for what is the same many times: the first row, or entries of the rows before it."""
    rows, columns = matrix.shape
    if layout == "overlapping":
        return torch.cat([matrix[0], matrix[:, 0]]).as_strided((rows, columns), (1, 1))
    if layout == "repeated":
        return matrix[:1].expand(rows, columns)
    if "columns" in layout:
        return laid_out(matrix.t(), layout.replace("columns", "rows")).t()
    room = {"rows": (rows, columns), "rows apart": (rows + 2, columns + 5), "every other": (rows, 2 * columns)}[layout]
    place = torch.full(room, float("nan"), dtype=matrix.dtype)
    view = place[:, ::2] if layout == "every other" else place[room[0] - rows :, room[1] - columns :]
    return view.copy_(matrix)


def whole_numbers(seed: int, *shape: int) -> Tensor:
    """So small that all sums of products are exact."""
    return torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(seed)).double()


@given(
    st.tuples(SIZES, SIZES, SIZES),
    st.tuples(st.sampled_from(LAYOUTS[:5]), st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)),
    st.booleans(),
    st.integers(0, 10**6),
)
@example((300, 48, 200), ("rows", "rows", "columns"), False, 0)
@example((700, 48, 200), ("rows apart", "rows apart", "rows apart"), False, 0)
@example((16, 600, 1500), ("columns apart", "rows", "rows apart"), True, 0)
@example((1, 1, 1), ("every other", "every other", "every other"), False, 0)
def test_products_are_those_of_whole_numbers(sizes, layouts, is_fresh, seed):
    rows, terms, columns = sizes
    first = laid_out(whole_numbers(seed, rows, terms), layouts[1])
    second = laid_out(whole_numbers(seed + 1, terms, columns), layouts[2])
    held = whole_numbers(seed + 2, rows, columns)
    out = laid_out(torch.full_like(held, float("nan")) if is_fresh else held, layouts[0])
    wanted = first.long() @ second.long() + (0 if is_fresh else held.long())
    assert add_product(out, first, second, is_fresh) is out
    assert torch.equal(out.long(), wanted)
    everything = torch.empty(0, dtype=torch.float64).set_(out.untyped_storage())
    assert int(everything.isfinite().sum()) == out.numel()  # nothing was written beside it
    for room in empty_products(first, 2, rows, columns).fill_(float("nan")):
        assert torch.equal(add_product(room, first, second, is_fresh=True).long(), first.long() @ second.long())
    assert torch.equal(multiply(first, second).long(), first.long() @ second.long())
    assert torch.equal(with_bias(first, second, held[0]).long(), first.long() @ second.long() + held[0].long())


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_products_of_nothing(sizes):
    rows, terms, columns = sizes
    first, second = torch.ones(rows, terms).double(), torch.ones(terms, columns).double()
    assert torch.equal(multiply(first, second), torch.zeros(rows, columns).double())
    assert torch.equal(with_bias(first, second, torch.ones(columns).double()), first @ second + 1)


def test_what_does_not_fit_is_an_error_and_not_a_product():
    first, second = torch.ones(3, 4).double(), torch.ones(5, 6).double()
    with pytest.raises(RuntimeError):
        multiply(first, second)
    with pytest.raises(RuntimeError):
        add_product(torch.zeros(3, 5).double(), first, second[:4])
    with pytest.raises(RuntimeError):
        add_product(torch.zeros(3, 6), first, second[:4])
    with pytest.raises(RuntimeError):
        with_bias(first.float(), second[:4].float(), torch.zeros(6).double())


def test_what_is_not_finite_spreads_as_it_should():
    first = torch.tensor([[0.0, 1.0], [2.0, 3.0]]).double()
    second = torch.tensor([[float("inf"), 1.0], [1.0, float("nan")]]).double()
    for matrices in ((first, second), (first.repeat(40, 1), second.repeat(1, 40))):
        assert torch.equal(multiply(*matrices).isnan(), (matrices[0] @ matrices[1]).isnan())


def test_gradients_and_other_numbers_are_torchs():
    first, second = torch.ones(3, 4).double().requires_grad_(), torch.ones(4, 2).double()
    multiply(first, second).sum().backward()
    assert first.grad is not None
    assert torch.equal(first.grad, torch.full((3, 4), 2.0).double())
    assert multiply(torch.ones(3, 4), torch.ones(4, 2)).dtype == torch.float32
    less = torch._neg_view(torch.ones(3, 4).double())
    assert torch.equal(multiply(less, second), torch.full((3, 2), -4.0).double())


def test_rounding_is_that_of_sums_in_some_order(openblas):
    """Within what sums of so many terms may be off by; and not as torch's is, so the library is used."""
    random = torch.Generator().manual_seed(0)
    for rows, terms, columns in ((17, 300, 19), (300, 1000, 200), (1, 700, 300)):
        first, second = (torch.randn(shape, generator=random).double() for shape in ((rows, terms), (terms, columns)))
        first, second = first / 3, second / 7
        scale = (terms + 2) * 2.0**-53 * (first.abs() @ second.abs())
        made = multiply(first, second)
        assert bool(((made - first @ second).abs() <= 2 * scale).all())
        assert not torch.equal(made, first @ second)


def test_more_threads_are_torchs(openblas):
    first, second = torch.randn(300, 400).double(), torch.randn(400, 300).double()
    assert not torch.equal(multiply(first, second), first @ second)
    torch.set_num_threads(2)
    try:
        assert torch.equal(multiply(first, second), first @ second)
    finally:
        torch.set_num_threads(1)


def printed(code: str, **environment: str) -> str:
    """What a fresh process prints."""
    words, settings = [sys.executable, "-c", textwrap.dedent(code)], {**os.environ, **environment}
    return subprocess.run(words, env=settings, capture_output=True, text=True, check=True).stdout.strip()


def test_it_is_loaded_without_a_trace(openblas):
    """Neither the environment nor numpy's own library is changed by it."""
    code = """
        import ctypes, os
        import numpy
        from shakeproof import linalg
        before = dict(os.environ)
        own = ctypes.CDLL(numpy._core._multiarray_umath.__file__).scipy_openblas_get_num_threads64_
        threads = own()
        assert linalg._openblas() is not None
        assert dict(os.environ) == before
        print(own() == threads)
    """
    assert printed(code) == "True"


def test_it_is_not_used_where_memory_is_limited(openblas):
    """It would end the process, with the exit code of a verdict."""
    code = """
        import resource
        {limit}
        from shakeproof import linalg
        print(linalg.wants_one_thread())
    """
    limit = "resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))"
    assert [printed(code.format(limit=own)) for own in ("", limit)] == ["True", "False"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("vendor_id\t: AuthenticAMD\nflags\t: fma avx512f avx512cd avx512bw avx512dq avx512vl\n\nvendor_id: x\n", True),
        ("vendor_id\t: AuthenticAMD\nflags\t: fma avx2 avx512f\n", False),
        ("vendor_id\t: GenuineIntel\nflags\t: fma avx512f avx512cd avx512bw avx512dq avx512vl\n", False),
        ("CPU implementer\t: 0x41\n", False),
        ("", False),
    ],
)
def test_processors(monkeypatch, text, wanted):
    monkeypatch.setattr(linalg.Path, "read_text", lambda self: text)
    assert linalg._is_amd_with_avx512() is wanted
