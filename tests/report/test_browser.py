"""The page in a real browser: what moves when a slider does, what a keyboard reaches, and what axe-core says."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from campaign.running import run_here
from report.conftest import HOSTILE, changed

import shakeproof as sp
from shakeproof import demo
from shakeproof.budget import no_progress
from shakeproof.parallel import TaskRunner, TaskScheduler
from shakeproof.question import parse_path
from shakeproof.report import gathered, html_page, safety_case
from shakeproof.report.gathering import described
from shakeproof.store import Store, StoredProfile, StoreWriter, read_campaign, register

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if BROWSER is None:
    pytest.skip("needs a browser; on Debian and Ubuntu: apt-get install chromium", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright; pip install 'shakeproof[test]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")

ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)


@pytest.fixture(scope="module")
def address(reported, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html_page(reported, safety_case(reported), f"Signs {HOSTILE}"), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=list(ARGUMENTS))
        yield running
        running.close()


@pytest.fixture
def opened(browser, address):
    """Opens the page, or another, at a width; in the end, it has neither complained nor asked anybody for anything."""
    said, asked, contexts = [], [], []

    def open_page(width=1280, scheme="light", address=address):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.set_default_timeout(20_000)
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        page.wait_for_selector(".detail h3")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert all(own.startswith("file:") and own.endswith(".html") for own in asked)


def choose(page, perturbation: str, image: str = "") -> None:
    """An answer, by the words of its perturbation and a part of its image's name."""
    page.get_by_label("Perturbation", exact=True).select_option(label=perturbation)
    page.get_by_label("Search").fill(image)
    page.wait_for_function("words => document.querySelector('.verdict').textContent.includes(words)", arg=perturbation)


def move(page, z: float, slider: int = 0) -> None:
    page.locator(".sliders input[type=range]").nth(slider).evaluate(
        "(own, z) => { own.step = 'any'; own.value = z; own.dispatchEvent(new Event('input', { bubbles: true })); }", z
    )


def picture(page) -> np.ndarray:
    """The perturbed picture, (height, width, 3), as the page shows it."""
    size, data = (
        page.locator(".pictures")
        .first.locator("canvas")
        .nth(1)
        .evaluate(
            """(own) => {
            const copy = document.createElement('canvas').getContext('2d');
            Object.assign(copy.canvas, { width: own.width, height: own.height });
            copy.drawImage(own, 0, 0);
            return [[own.height, own.width], [...copy.getImageData(0, 0, own.width, own.height).data]];
        }"""
        )
    )
    return np.array(data, dtype=int).reshape(*size, 4)[..., :3]


@pytest.mark.parametrize(
    ("text", "words", "strengths"),
    [
        ("motion-blur:size=9,angle=90", "motion blur, size 9, 90°", [(0.0,), (0.37,), (1.0,)]),
        ("box-blur:size=4,padding=zeros", "box blur, size 4, zeros padding", [(0.0,), (0.8,)]),
        ("sharpen:size=5,clip=0.2..0.7", "sharpen, size 5, clipped to 0.2..0.7", [(0.5,), (1.0,)]),
        ("haze:colour=0.8", "haze, colour 0.8", [(0.3,)]),
        (
            "box-blur:size=5,padding=circular+brightness:max=0.1",
            "box blur, size 5, circular padding + brightness, max 0.1",
            [(0.15, 0.05), (0.0, 0.1)],
        ),
        ("zoom-blur:by=1.3+haze:colour=0.8", "zoom blur, by 1.3 + haze, colour 0.8", [(0.1, 0.0), (0.05, 0.1)]),
    ],
)
def test_the_picture_is_the_tools_own(opened, reported, text, words, strengths):
    page = opened()
    choose(page, words, HOSTILE)
    pixels = next(one.image.pixels for one in reported.profiles if HOSTILE in one.image.name)
    path = parse_path(text).apply(torch.from_numpy(pixels))
    for places in strengths:
        for slider, z in enumerate(places):
            move(page, z, slider)
        own = np.rint(path.image(*places).clamp(0, 1).numpy().transpose(1, 2, 0) * 255)
        assert np.abs(picture(page) - own).max() <= 1


def test_the_slider_changes_picture_class_and_kernel(opened, reported):
    page = opened()
    choose(page, "motion blur, size 9, 90°", HOSTILE)
    record = next(
        one.record
        for one in reported.profiles
        if HOSTILE in one.image.name and str(one.perturbation) == "motion-blur:size=9,angle=90"
    )
    assert record.status == "unsafe"
    seen = []
    for z in (0.2, record.critical_strength[1] + 0.01):
        move(page, z)
        kernel = page.locator(".kernel svg").get_attribute("data-centre")
        seen.append((picture(page).tolist(), page.locator(".now-line b").inner_text(), kernel))
        assert float(kernel) == pytest.approx(1 - z + z / 9, abs=1e-6)
    assert all(before != after for before, after in zip(*seen, strict=True))
    assert seen[0][1].startswith("warning")
    assert page.locator(".now-line").inner_text().startswith("At z = 0.69")
    assert "certified" not in page.locator(".now-line").inner_text()


def test_sentences_say_what_the_records_do(opened, reported):
    page = opened()
    several = [one for one in reported.profiles if HOSTILE in one.image.name]
    assert {one.record.status for one in several} == {"safe", "unsafe", "undecided"}
    for one in several:
        choose(page, described(one.perturbation)["words"], HOSTILE)
        told = page.locator(".verdict").inner_text().replace(", 0.", ",0.")
        assert told.endswith(f"— {one.record.told(one.model.class_names)}")


def test_what_is_undecided_is_never_shown_as_certified(opened):
    page = opened()
    choose(page, "box blur, size 9")
    assert "undecided" in page.locator(".verdict").inner_text()
    for z in (0.01, 0.5, 1.0):
        move(page, z)
        assert "undecided" in page.locator(".now-line").inner_text()
    cell = page.get_by_role("button", name="box blur, size 9: 0 % certified, 1 undecided")
    assert "?" in cell.inner_text()


def test_what_lies_between_proof_and_loss_is_not_settled(opened, reported, tmp_path):
    """Rounding leaves something open, long before the label is lost: the curve knows who wins, but without proof."""
    unsafe = next(one for one in reported.profiles if one.record.status == "unsafe" and one.record.profile)
    loss = unsafe.record.critical_strength[1]
    behind = [part for part in unsafe.said["profile"] if part["proved"] and part["from"] > loss / 4]
    label = {"class": unsafe.record.label}
    won = {"from": 0, "to": loss / 4, **label, "proved": True}, {"from": loss / 4, "to": loss, **label, "proved": False}
    doubtful = changed(unsafe, certified_strength=loss / 4, profile=[*won, *behind])
    only = replace(reported, profiles=[doubtful], errors=[], checks={})
    path = tmp_path / "doubtful.html"
    path.write_text(html_page(only, safety_case(only), "signs"), encoding="utf-8")
    page = opened(address=path.as_uri())
    for share, words in ((0.2, "certified for every strength"), (0.5, "undecided here"), (1.01, "not the label")):
        move(page, share * loss)
        assert words in page.locator(".now-line").inner_text()


def test_the_keyboard_alone_reaches_everything(opened):
    page = opened()
    wanted = page.evaluate(
        """() => [...document.querySelectorAll('a[href], button, select, input, summary, [tabindex="0"]')]
            .filter((own) => own.checkVisibility()).map((own, number) => (own.dataset.wanted = number))"""
    )
    reached = set()
    for _ in range(len(wanted) + 5):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.wanted"))
    assert {str(number) for number in wanted} <= reached
    page.locator(".list").focus()
    before = page.locator(".detail").inner_text()
    page.keyboard.press("ArrowDown")
    page.wait_for_function("before => document.querySelector('.detail').innerText !== before", arg=before)
    assert page.locator(".row[aria-selected=true]").get_attribute("aria-posinset") == "2"
    page.keyboard.press("End")
    count = page.locator(".row").last.get_attribute("aria-setsize")
    assert page.locator(".row[aria-selected=true]").get_attribute("aria-posinset") == count
    page.locator(".sliders input[type=range]").first.focus()
    shown = picture(page)
    page.keyboard.press("Home")
    assert not np.array_equal(shown, picture(page))


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (820, "dark"), (1280, "light"), (1280, "dark")])
def test_it_fits_and_everybody_can_use_it(opened, width, scheme, tmp_path):
    page = opened(width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / f"{width}-{scheme}.png", full_page=True)
    for folded in page.locator("details:not([open]) summary").all():
        folded.click()
    found = axe.Axe().run(page).response
    assert len(found["passes"]) > 20
    assert [(own["id"], [node["html"] for node in own["nodes"]]) for own in found["violations"]] == []


def test_the_strength_moves_what_is_counted(opened, reported):
    page = opened()
    tile = page.locator(".tile").first
    at_full = tile.inner_text()
    page.locator("#z").evaluate("(own) => { own.value = 0.1; own.dispatchEvent(new Event('input')); }")
    page.wait_for_function("before => document.querySelector('.tile').innerText !== before", arg=at_full)
    images: dict[str, list[bool]] = {}
    for one in reported.asked:
        images.setdefault(one.image.name, []).append(
            isinstance(one, StoredProfile) and one.claim.at(0.1) is sp.Status.SAFE
        )
    certified = sum(map(all, images.values()))
    assert f"{certified} certified under every perturbation up to strength 0.1" in tile.inner_text()


def test_a_cell_of_the_matrix_shows_its_images(opened):
    page = opened()
    page.get_by_role("button", name="haze, colour 0.8").first.click()
    page.wait_for_function("document.querySelectorAll('.row').length === 2")
    assert "haze" in page.locator(".verdict").inner_text()


@pytest.fixture(scope="module")
def decided(demo_network, tmp_path_factory):
    """Two networks, a picture that is misclassified, sizes out of their order, a long name, and no certificates."""
    folder = tmp_path_factory.mktemp("decided")
    kernel = folder / "measured-shake-of-the-camera-on-the-left-hand-side-of-the-vehicle.npy"
    np.save(kernel, np.full((3, 3), 1 / 9))
    other = str(shutil.copy(demo.MODEL, folder / "a-network-with-a-long-name-that-was-trained-again.onnx"))
    (folder / "labels.csv").write_text(
        "path,label\n" + "".join(f"{path},{label}\n" for path, label in [*demo.images()[:2], (demo.images()[4][0], 5)])
    )
    (folder / "c.toml").write_text(
        f'name = "Two"\nmodels = ["{demo.MODEL}", "{other}"]\n[images]\ncsv = "labels.csv"\n[analysis]\ntimeout = 20\n'
        + "".join(f'[[perturbations]]\nfamily = "motion-blur"\nsize = {size}\nangle = [90, 0]\n' for size in (11, 5))
        + f'[[perturbations]]\nfamily = "psf"\nfile = "{kernel}"\n'
    )
    # another digest, but the same weights
    model = onnx.load(other)
    model.doc_string = "trained again"
    onnx.save(model, other)
    campaign = read_campaign(folder / "c.toml")
    with StoreWriter.open(campaign.store) as writer:
        registered = register(campaign, writer)
        scheduler, runner = TaskScheduler(campaign, registered, writer, 1), TaskRunner()
        while (task := scheduler.next_task()) is not None:
            scheduler.finish(task, list(runner.outcomes(task)), 1.0)
        reported = gathered(writer, None, checks=False, advance=no_progress)
    path = folder / "report.html"
    path.write_text(html_page(reported, safety_case(reported), "Two"), encoding="utf-8")
    return path.as_uri(), reported


def test_a_page_for_somebody_who_decides(opened, decided):
    address, reported = decided
    page = opened(address=address)
    assert page.locator("#lead").inner_text().startswith("3 images, 5 perturbations, 2 networks. Each of 30 answers")
    assert page.locator("#notices").inner_text() == "No certificates: verdicts rest on the prover alone."
    wrong = {one.image.name for one in reported.profiles if one.claim.verdict is sp.Status.MISCLASSIFIED}
    assert len(wrong) == 1
    assert "2 misclassified at strength 0, and left out" in " ".join(page.locator("#glance").inner_text().split())
    assert "Of 4 images that are classified correctly" in page.locator("#glance").inner_text()
    heads = page.locator("#matrix thead th").all_inner_texts()
    assert heads == ["size 5", "size 11", "any"]
    rows = page.locator("#matrix tbody th").all_inner_texts()
    assert rows[:2] == ["motion blur 0°", "motion blur 90°"]
    # the page opens on a picture that is lost on the way, not on one that is wrong from the start
    assert "violated" in page.locator(".verdict").inner_text()
    shares = page.locator(".networks tbody tr").first.locator("td").all_inner_texts()
    assert len(shares) == 2
    assert shares[0] == shares[1]
    page.get_by_role("button", name="Misclassified at strength 0: 2 images.").click()
    page.wait_for_function("document.querySelector('.verdict').textContent.includes('misclassified')")


@pytest.mark.parametrize("width", [390, 1280])
def test_long_names_wrap_and_overlap_nothing(opened, decided, width):
    page = opened(width, address=decided[0])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    overlaps = page.evaluate(
        """() => [...document.querySelectorAll('#matrix tbody tr, .networks tr, .classtable tr')].flatMap((row) => {
            const range = document.createRange();
            range.selectNodeContents(row.children[0]);
            return range.getBoundingClientRect().right > row.children[1].getBoundingClientRect().left + 1 ? [row] : [];
        }).length"""
    )
    assert overlaps == 0
    chips = page.evaluate(
        "[...document.querySelectorAll('.rivals span')].map((own) => own.getBoundingClientRect().right)"
    )
    assert chips
    assert max(chips) <= width


@pytest.fixture(scope="module")
def required(tmp_path_factory):
    """Three requirements, of which one is met, one not, and one is not shown; the last has no labels."""
    folder = tmp_path_factory.mktemp("required")
    (folder / "names.txt").write_text("\n".join(demo.CLASSES))
    paths = [str(path) for path, _ in demo.images() if path.stem in ("limit-30.1", "turn-left.1", "stop.1")]
    (folder / "c.toml").write_text(
        f'name = "Required"\nmodels = ["{demo.MODEL}"]\nimages.paths = {paths}\nnetwork.classes = "names.txt"\n'
        'perturbations = ["motion-blur:size=5,angle=90"]\n'
        '[[requirement]]\nid = "YES"\ntext = "Short shakes."\nstrength = 0.1\nshare = 0.1\n'
        '[[requirement]]\nid = "NO"\nperturbations = ["motion-blur:size=11,angle=0"]\n'
        '[[requirement]]\nid = "OPEN"\nrequire = "never:classes=limit-30"\nstrength = 0.2\nshare = 0.95\n'
    )
    run_here(folder / "c.toml")
    with Store.open(folder / "c.db") as store:
        reported = gathered(store, None, checks=False, advance=no_progress)
    (folder / "r.html").write_text(html_page(reported, safety_case(reported), "Required"), encoding="utf-8")
    return (folder / "r.html").as_uri()


@pytest.mark.parametrize("width", [390, 1280])
def test_requirements_come_first_and_choose_what_is_shown(opened, required, width):
    page = opened(width, address=required)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cards = [" ".join(text.split()) for text in page.locator(".requirement h3").all_inner_texts()]
    assert cards == ["NOT MET NO", "NOT SHOWN OPEN", "MET YES"]
    assert page.locator("#requirements .lead").inner_text() == "1 of 3 requirements met, 1 not met, 1 not shown."
    assert page.locator("#lead").inner_text().startswith("3 images, 2 perturbations, 1 network.")
    assert page.locator("main section").first.get_attribute("id") == "requirements"
    # the page is about the one that is not met: at its strength, with its answers alone
    assert page.locator("#controls output").inner_text() == "1"
    assert page.locator(".finder .dim").inner_text() == "3 of 9 answers"
    assert "violated" in page.locator(".verdict").inner_text()
    assert page.get_by_role("button", name="Closest to being met: NO").count() == 1
    page.get_by_role("button", name="Show its pictures").nth(1).click()
    holds = "never:classes=limit-30 holds"
    page.wait_for_function("words => document.querySelector('.verdict').textContent.includes(words)", arg=holds)
    assert page.locator("#controls output").inner_text() == "0.2"
    assert "Of 2 images for which never:classes=limit-30 holds" in page.locator("#glance").inner_text()
    assert page.locator("#classes").is_hidden()
    assert page.locator(".now-line").inner_text().startswith("At z = 0.2: it holds")
    found = axe.Axe().run(page).response
    assert [own["id"] for own in found["violations"]] == []


def test_names_do_nothing(opened):
    page = opened()
    assert page.title() == f"Signs {HOSTILE}"
    assert page.locator("img").count() == 0


def test_it_prints(opened, tmp_path):
    page = opened()
    page.emulate_media(media="print")
    page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
    assert page.evaluate("getComputedStyle(document.querySelector('.finder')).display") == "none"
