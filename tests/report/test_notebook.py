"""What notebooks and prompts show."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image as Pillow

import shakeproof as sp
from shakeproof import demo

SIGN = next(path for path, _ in demo.images() if path.name == "warning.1.png")


class Reader(HTMLParser):
    """Checks that tags close in order, and collects text and pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.pictures: list[Pillow.Image] = []

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            data = re.fullmatch(r"data:image/png;base64,(.*)", dict(attrs)["src"])[1]
            self.pictures.append(Pillow.open(io.BytesIO(base64.b64decode(data))))
        else:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert "http" not in html
    assert "<script" not in html
    return reader


def test_a_result_shows_its_pictures_and_margins(demo_network):
    result = sp.profile(demo_network, SIGN, "motion-blur:size=9,angle=90")
    shown = read(result._repr_html_())
    assert "unsafe" in shown.text
    assert "critical strength 0.681937" in shown.text
    original, found, plot = shown.pictures
    assert np.array_equal(np.asarray(original), np.asarray(Pillow.open(SIGN)))
    pixels = (result.picture().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    assert np.array_equal(np.asarray(found), pixels)
    assert plot.width > 500


@pytest.mark.parametrize(
    ("perturbation", "options", "pictures"),
    [
        ("box-blur:size=3", {}, 3),
        ("box-blur:size=3+haze:colour=0.5", {"timeout": 0.5}, 3),
        ("box-blur:size=3+haze:colour=0.5+contrast:max=0.1", {"timeout": 0.5}, 2),
        ("any-kernel:size=3", {}, 2),
        ("box-blur:size=9", {"timeout": 1e-6}, 3),
        ("box-blur:size=9", {"label": 0}, 2),
    ],
)
def test_every_kind_of_result_can_be_shown(demo_network, perturbation, options, pictures):
    result = sp.verify(demo_network, SIGN, perturbation, 0.3, **options)
    shown = read(result._repr_html_())
    assert str(result.status) in shown.text
    assert len(shown.pictures) >= pictures
    assert result.sentence in shown.text


def test_a_query_without_pictures(demo_network, tmp_path):
    names = [f"X_{i}" for i in range(3072)]
    declared = "".join(f"(declare-const {n} Real)" for n in [*names, *(f"Y_{i}" for i in range(10))])
    box = "".join(f"(assert (>= {name} 0.5)) (assert (<= {name} 0.5))" for name in names)
    (tmp_path / "q.vnnlib").write_text(f"{declared}{box}(assert (>= Y_0 1000))")
    result = sp.verify_specification(demo_network, tmp_path / "q.vnnlib")
    assert repr(result) == "<Result q.vnnlib: safe, the property holds>"
    assert "the property holds" in read(result._repr_html_()).text


def test_names_cannot_break_out(demo_network):
    image = sp.Image("<script>x</script>&.png", sp.read_image(SIGN).fitted(demo_network.picture()).pixels)
    shown = read(sp.verify(demo_network, image, "box-blur:size=3", 0.1)._repr_html_())
    assert "script>&.png" in shown.text


def test_a_network_is_a_short_table(demo_network):
    shown = read(demo_network.normalised([0.5], [0.25])._repr_html_())
    for word in (str(demo.MODEL), "3 x 32 x 32", "10", "exact", "mean [0.5] and std [0.25]"):
        assert word in shown.text


def test_reprs_are_short(demo_network):
    result = sp.profile(demo_network, SIGN, "motion-blur:size=9,angle=90")
    line = "warning.1.png under motion-blur:size=9,angle=90: unsafe, {} loses, critical strength 0.681937"
    assert repr(result).startswith(f"<Result {line.format('warning')}")
    assert repr(sp.Record.from_json(result.to_json())).startswith(f"<Record {line.format('class 8')}")
    assert repr(result.query) == f"<Query {SIGN} under motion-blur:size=9,angle=90 up to (1.0,), label 8>"
    assert repr(result.query.image) == f"<Image {SIGN}: 3 x 32 x 32>"
    assert repr(sp.Image("x", result.query.image.pixels, 3)) == "<Image x: 3 x 32 x 32, label 3>"
    assert repr(sp.haze(0.5) + sp.box_blur(3)) == "<Perturbation haze:colour=0.5+box-blur:size=3>"
    assert repr(demo_network) == (
        f"<Network {demo.MODEL}: input 3 x 32 x 32, outputs 10, operators 11 (piecewise linear: exact)>"
    )
    assert repr(sp.read_image(SIGN)) == f"<RawImage {SIGN}>"


def test_a_plot_shows_itself():
    """Without pyplot: a notebook asks a value for its picture."""
    result = sp.profile(sp.load(demo.MODEL), str(SIGN), "box-blur:size=3")
    picture = Pillow.open(io.BytesIO(result.plot()._repr_png_()))
    assert (picture.format, picture.width > 500) == ("PNG", True)
