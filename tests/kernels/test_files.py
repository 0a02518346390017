"""Kernels from files: as they are, and point spread functions."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from scipy.io import savemat

from shakeproof.errors import InputError
from shakeproof.question import box_blur, custom, identity, psf


def total(matrix):
    return sum(map(sum, matrix))


def test_custom_kernels_from_files(tmp_path):
    np.save(tmp_path / "k.npy", np.array([[0.0, 0.5], [0.25, 0.25]]))
    (tmp_path / "k.csv").write_text("1/9,1/9,1/9\n1/9, 1/9 ,1/9\n1/9,1/9,1/9\n")
    Image.fromarray(np.array([[0, 255, 0]], dtype=np.uint8)).save(tmp_path / "k.png")
    assert custom(tmp_path / "k.npy").kernel.at(1)[1][0] == Fraction(1, 4)
    assert custom(tmp_path / "k.csv").kernel == box_blur(3).kernel
    assert custom(tmp_path / "k.png").kernel.at(1) == ((0, 1, 0),)
    np.save(tmp_path / "two.npy", np.full((3, 3), 2))
    assert total(custom(tmp_path / "two.npy").kernel.at(1)) == 18
    assert custom(tmp_path / "two.npy", normalise=True).kernel == box_blur(3).kernel


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("gone.npy", None),
        ("text.npy", b"no array"),
        ("words.csv", b"a,b\nc,d\n"),
        ("ragged.csv", b"1,2\n3\n"),
        ("zero.csv", b"1/0\n"),
        ("empty.csv", b""),
        ("inf.csv", b"inf,1\n"),
        ("kernel.txt", b"1"),
        ("huge.csv", b"1e400\n"),
        ("long.csv", b"1" * 200_000),
        ("broken.png", b"\x89PNG broken"),
    ],
)
def test_bad_kernel_files(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        custom(tmp_path / name)


def test_a_kernel_that_sums_to_zero_cannot_be_normalised(tmp_path):
    (tmp_path / "k.csv").write_text("1,-1\n")
    with pytest.raises(InputError, match="sums to 0"):
        custom(tmp_path / "k.csv", normalise=True)


# -- several in a file -------------------------------------------------------------------------------------------------

ONE, TWO = np.array([[0.0, 0.5], [0.25, 0.25]]), np.full((3, 3), 2)


def end(path, index=None):
    return np.array(custom(path, index).kernel.at(1), dtype=float)


def cells():
    held = np.empty((1, 2), dtype=object)
    held[0, 0], held[0, 1] = ONE, TWO
    return held


@pytest.mark.parametrize(
    ("name", "write", "indices"),
    [
        ("named.npz", lambda path: np.savez(path, one=ONE, two=TWO), ("one", "two")),
        ("numbered.npz", lambda path: np.savez(path, **{"7": ONE, "1": TWO}), ("7", "1")),
        ("by_number.npz", lambda path: np.savez(path, one=ONE, two=TWO), ("0", "1")),
        ("stack.npy", lambda path: np.save(path, np.stack([np.pad(ONE, ((0, 1), (0, 1))), TWO])), ("0", "1")),
        ("stack.npz", lambda path: np.savez(path, k=np.stack([np.pad(ONE, ((0, 1), (0, 1))), TWO])), ("0", "1")),
        ("named.mat", lambda path: savemat(path, {"one": ONE, "two": TWO}), ("one", "two")),
        ("cells.mat", lambda path: savemat(path, {"kernels": cells()}), ("0", "1")),
        ("stack.mat", lambda path: savemat(path, {"k": np.dstack([np.pad(ONE, ((0, 1), (0, 1))), TWO])}), ("0", "1")),
    ],
)
def test_one_of_several(tmp_path, name, write, indices):
    path = tmp_path / name
    write(path)
    first, second = (end(path, index) for index in indices)
    assert np.array_equal(first[:2, :2], ONE)
    assert not first[2:].any()
    assert np.array_equal(second, TWO)
    with pytest.raises(InputError, match="say which kernel"):
        end(path)
    for index in ("2", "-1", "three", "", "1.0"):
        with pytest.raises(InputError, match="there is no kernel"):
            end(path, index)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", ["u1", "i2", "u4", "i8", "f4", "f8", "?"])
def test_matlab_files_as_scipy_writes_them(tmp_path, kind, packed):
    matrix = np.arange(15).reshape(3, 5).astype(kind)
    savemat(tmp_path / "k.mat", {"a": matrix, "long_name_of_b": matrix.T}, do_compression=packed)
    assert np.array_equal(end(tmp_path / "k.mat", "a"), matrix)
    assert np.array_equal(end(tmp_path / "k.mat", "long_name_of_b"), matrix.T)


def test_matlab_variables_may_have_any_name(tmp_path):
    savemat(tmp_path / "k.mat", {"file": ONE, "allow_pickle": TWO})
    assert np.array_equal(end(tmp_path / "k.mat", "file"), ONE)
    assert np.array_equal(end(tmp_path / "k.mat", "allow_pickle"), TWO)


@pytest.mark.parametrize(("name", "write"), [("k.mat", savemat), ("k.npz", lambda path, held: np.savez(path, **held))])
def test_names_that_end_as_members_of_archives_do(tmp_path, name, write):
    """numpy.load takes x.npy for the array x, whose member is called so."""
    write(tmp_path / name, {"x": ONE, "x.npy": TWO})
    assert np.array_equal(end(tmp_path / name, "x"), ONE)
    assert np.array_equal(end(tmp_path / name, "x.npy"), TWO)


def test_matlab_files_of_version_4(tmp_path):
    savemat(tmp_path / "k.mat", {"one": ONE}, format="4")
    assert np.array_equal(end(tmp_path / "k.mat"), ONE)


def test_a_matlab_file_that_crashes_scipy_is_called_damaged(tmp_path):
    path = tmp_path / "k.mat"
    savemat(path, {"one": np.eye(3)})
    good = path.read_bytes()
    path.write_bytes(good[:176] + b"\x0e\0\0\0" + good[180:])
    script = "import sys; from scipy.io import loadmat; loadmat(sys.argv[1])"
    if subprocess.run([sys.executable, "-c", script, path], check=False, capture_output=True).returncode >= 0:
        pytest.skip("this scipy does not crash on it")
    with pytest.raises(InputError, match="damaged"):
        end(path)


def test_a_name_comes_before_a_number(tmp_path):
    np.savez(tmp_path / "k.npz", **{"1": ONE, "0": TWO})
    assert np.array_equal(end(tmp_path / "k.npz", "1"), ONE)


def test_the_only_one_needs_no_index(tmp_path):
    np.savez(tmp_path / "k.npz", one=ONE)
    savemat(tmp_path / "k.mat", {"f": ONE})
    np.save(tmp_path / "k.npy", ONE)
    for ending in ("npz", "mat", "npy"):
        assert np.array_equal(end(tmp_path / f"k.{ending}"), ONE)
        assert np.array_equal(end(tmp_path / f"k.{ending}", "0"), ONE)


def test_pictures_of_16_bits_keep_them(tmp_path):
    Image.fromarray(np.array([[0, 65535, 257]], dtype=np.uint16)).save(tmp_path / "k.png")
    assert custom(tmp_path / "k.png").kernel.at(1) == ((0, 1, Fraction(1, 255)),)


@pytest.mark.parametrize(
    ("name", "write", "problem"),
    [
        ("v73.mat", lambda p: p.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"), "save it with -v7"),
        ("complex.mat", lambda p: savemat(p, {"one": ONE + 1j}), "two axes"),
        ("struct.mat", lambda p: savemat(p, {"one": {"two": TWO}}), "two axes"),
        ("text.mat", lambda p: savemat(p, {"words": "kernel"}), "two axes"),
        ("nothing.mat", lambda p: savemat(p, {}), "the file has nothing"),
        ("nothing.npz", lambda p: np.savez(p), "the file has nothing"),
        ("line.npy", lambda p: np.save(p, np.ones(3)), "two axes"),
        ("complex.npy", lambda p: np.save(p, np.ones((3, 3), dtype=complex)), "two axes"),
        ("nan.npy", lambda p: np.save(p, np.full((3, 3), np.nan)), "finite"),
        ("pickled.npy", lambda p: np.save(p, np.array([[None]])), "finite"),
        ("colour.png", lambda p: Image.new("RGB", (3, 3)).save(p), "save it as grey"),
        ("large.png", lambda p: Image.new("L", (1000, 3)).save(p), "999 at most"),
        ("other.png", lambda p: Image.new("L", (3, 3)).save(p, format="BMP"), "not a readable file"),
        ("large.npy", lambda p: np.save(p, np.ones((1000, 3))), "at most 999"),
    ],
)
def test_what_is_no_kernel(tmp_path, name, write, problem):
    write(tmp_path / name)
    with pytest.raises(InputError) as error:
        end(tmp_path / name)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_much_of_nothing_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("shakeproof.question.kernel_files.MOST_BYTES", 10**5)
    np.savez_compressed(tmp_path / "k.npz", one=np.zeros((999, 999)))
    savemat(tmp_path / "k.mat", {"one": np.zeros((999, 999))}, do_compression=True)
    for ending in ("npz", "mat"):
        with pytest.raises(InputError, match="bytes are too many"):
            end(tmp_path / f"k.{ending}")


def test_pipes_and_folders_are_no_kernels(tmp_path):
    (tmp_path / "folder.npy").mkdir()
    os.mkfifo(tmp_path / "pipe.npy")
    for name in ("folder.npy", "pipe.npy"):
        with pytest.raises(InputError, match=f"{name}: is"):
            end(tmp_path / name)


@pytest.mark.parametrize("ending", ["npz", "mat", "npy", "png"])
def test_damaged_files_are_called_so(tmp_path, ending):
    path, chance = tmp_path / f"k.{ending}", random.Random(0)
    {
        "npz": lambda: np.savez_compressed(path, one=ONE),
        "mat": lambda: savemat(path, {"one": ONE}, do_compression=True),
        "npy": lambda: np.save(path, ONE),
        "png": lambda: Image.fromarray(np.eye(5, dtype=np.uint8)).save(path),
    }[ending]()
    good = path.read_bytes()
    for _ in range(12 if ending == "mat" else 150):  # scipy is started for each
        bad = bytearray(good[: chance.randrange(len(good))] if chance.random() < 0.3 else good)
        for _ in range(chance.randrange(1, 6)):
            if bad:
                bad[chance.randrange(len(bad))] = chance.randrange(256)
        path.write_bytes(bad)
        try:
            end(path)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017


# -- point spread functions --------------------------------------------------------------------------------------------


@given(spread=arrays(np.uint8, st.tuples(st.integers(1, 8), st.integers(1, 8))).filter(np.any))
def test_a_point_becomes_its_spread(spread, tmp_path_factory):
    """Normalised, and shifted by whole pixels so that the centre of mass is where the point was."""
    path = tmp_path_factory.mktemp("psf") / "k.npy"
    np.save(path, spread)
    perturbation = psf(path)
    height, width = perturbation.kernel.shape
    assert height % 2 == width % 2 == 1
    assert total(perturbation.kernel.at(1)) == 1
    point = torch.zeros(1, 41, 41, dtype=torch.float64)
    point[0, 20, 20] = 1
    became = perturbation.apply(point).image(1.0)[0].numpy()
    mass = np.array([(np.indices(became.shape)[axis] * became).sum() for axis in (0, 1)])
    assert (np.abs(mass - 20) <= 0.5 + 1e-9).all()
    rows, columns = np.flatnonzero(spread.any(1)), np.flatnonzero(spread.any(0))
    found_rows, found_columns = np.flatnonzero(became.any(1)), np.flatnonzero(became.any(0))
    seen = became[found_rows[0] : found_rows[-1] + 1, found_columns[0] : found_columns[-1] + 1]
    cropped = spread[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    assert np.abs(seen - cropped / spread.sum()).max() < 1e-12


def test_an_even_spread_is_centred_on_the_later_pixel(tmp_path):
    np.save(tmp_path / "k.npy", np.ones((2, 4)))
    matrix = np.array(psf(tmp_path / "k.npy").kernel.at(1), dtype=float)
    assert matrix.tolist() == [[0] * 5, [0, *[0.125] * 4], [0, *[0.125] * 4]]


def test_spreads_that_cannot_be(tmp_path):
    for name, array, problem in (
        ("negative", np.array([[1, -0.5, 1]]), "negative"),
        ("dark", np.zeros((3, 3)), "sums to 0"),
        ("far", np.array([[1, *[0] * 900, 99]]), "crop it"),
    ):
        np.save(tmp_path / f"{name}.npy", array)
        with pytest.raises(InputError, match=problem):
            psf(tmp_path / f"{name}.npy")


def test_a_spread_that_is_one_point_changes_nothing(tmp_path):
    np.save(tmp_path / "k.npy", np.pad(np.ones((1, 1)), ((3, 1), (0, 5))))
    assert psf(tmp_path / "k.npy").kernel == identity().kernel


@pytest.mark.parametrize(("archive", "count"), [("camera_shake_pyblur100.npz", 100), ("camera_shake_levin09.npz", 8)])
def test_measured_camera_shake(shared, archive, count):
    path = shared(f"data/{archive}")
    with np.load(path) as held:
        names, sizes = list(held), [held[name].shape for name in held]
    assert len(names) == count
    for number in range(0, count, max(count // 8, 1)):
        kernel = psf(path, names[number]).kernel
        assert total(kernel.at(1)) == 1
        assert kernel == psf(path, str(number)).kernel
        assert all(side <= 2 * given - 1 for side, given in zip(kernel.shape, sizes[number], strict=True))
