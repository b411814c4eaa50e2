"""The report in a real browser: drawn, quiet, operable, readable in the dark, on a phone and on paper."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import CHROMIUM, Browser
from made_runs import make_run

from fedetf.cli import main
from fedetf.methods import METHODS
from fedetf.report.curves import MEASURES
from fedetf.report.page import write_report

TEN = list(METHODS)[:10]

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium in PATH"),
    pytest.mark.xdist_group("chromium"),
    pytest.mark.slow,
]

NASTY = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a real, tiny comparison, as ``fedetf compare`` writes it."""
    folder = tmp_path_factory.mktemp("real") / "grid"
    small = ["--clients", "3", "--rounds", "2", "--epochs", "1", "--engine", "serial", "--set", "data.limit=100"]
    more = ["--set", "personal.rounds=2", "--out", str(folder)]
    assert main(["compare", "--methods", "fedproto,fedetf", "--seeds", "7,8", "--no-references", *small, *more]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two methods × two settings × two seeds with measures; FedETF is above FedAvg."""
    folder = tmp_path_factory.mktemp("made")
    for method, level in (("fedavg", 0.3), ("fedetf", 0.6)):
        for seed in (7, 8):
            for alpha in (0.1, 0.5):
                run = folder / f"{method}-{alpha}-{seed}"
                names = ["nc2", "drift", "never_heard_of"]
                make_run(run, method, seed, 10, measures=names, level=level, **{"data.alpha": alpha})
    return write_report([folder], folder / "page.html").path


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten methods × three seeds × 200 rounds, with every measure."""
    folder = tmp_path_factory.mktemp("big")
    for number, method in enumerate(TEN):
        for seed in (7, 8, 9):
            make_run(folder / f"{method}-s{seed}", method, seed, 200, 20, MEASURES, level=0.3 + 0.03 * number)
    return write_report([folder], folder / "page.html").path


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten methods × five seeds × three settings, and both references."""
    folder = tmp_path_factory.mktemp("wide")
    for number, method in enumerate([*TEN, "local", "pooled"]):
        for seed in range(7, 12):
            for alpha in (0.05, 0.1, 0.5):
                level = 0.2 + 0.1 * alpha + 0.03 * number + 0.005 * (seed * number % 7)
                run = folder / f"{method}-{alpha}-s{seed}"
                make_run(run, method, seed, 60, 20, ["nc2"], level=level, majority=0.3, **{"data.alpha": alpha})
    return write_report([folder], folder / "page.html").path


def assert_quiet(browser: Browser, page: Path) -> None:
    """No error, no word on the console, and no request but for the page itself."""
    assert browser.seen("Runtime.exceptionThrown") == []
    assert browser.seen("Runtime.consoleAPICalled") == []
    assert browser.seen("Log.entryAdded") == []
    requests = [request["request"]["url"] for request in browser.seen("Network.requestWillBeSent")]
    assert [url for url in requests if url != "data:,"] == [page.absolute().as_uri()]


def lines(browser: Browser, chart: str) -> list[str]:
    """The names of the lines in a chart that have a length."""
    return browser.run(
        f"""[...document.querySelectorAll('[data-chart="{chart}"] .series')]
        .filter((s) => s.querySelector('.line').getTotalLength() > 20 && s.getBoundingClientRect().width > 20)
        .map((s) => s.dataset.name)"""
    )


def test_the_page_of_a_real_comparison(browser: Browser, real: Path) -> None:
    browser.open(real)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    browser.run("new Promise((done) => setTimeout(done, 50))")  # the folds say later that they were opened
    assert_quiet(browser, real)
    assert lines(browser, "general") == ["FedETF"]  # FedProto has no global model
    assert lines(browser, "loss") == ["FedProto", "FedETF"]
    assert lines(browser, "finetuning") == ["FedETF"]
    assert browser.run("document.querySelector('#holds .disc').getTotalLength()") > 10
    counts = json.loads((real.parent / "fedetf-s7" / "partition.json").read_text())["clients"]
    held = sum(n > 0 for client in counts for n in client["counts"])
    assert browser.run("document.querySelector('#holds .disc').getAttribute('d').split('Z').length - 1") == held
    assert "fedetf compare --methods fedproto,fedetf --seeds 7,8" in browser.run("document.body.innerText")


def test_every_chart_is_drawn(browser: Browser, big: Path) -> None:
    browser.open(big)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    browser.run("new Promise((done) => setTimeout(done, 200))")
    assert_quiet(browser, big)
    names = [METHODS[method].__name__ for method in TEN]
    charts = browser.run("[...document.querySelectorAll('[data-chart]')].map((f) => f.dataset.chart)")
    assert sorted(charts) == sorted(
        ["general", "general:bytes", "general:passes", "loss", "finetuning", "clients"]
        + [f"measure:{name}" for name in MEASURES]
    )
    for chart in charts:
        others = {"finetuning": [n for n in names if n != "FedETF"]}
        without = ["FedProto"] if chart.startswith("general") else others.get(chart, [])
        assert lines(browser, chart) == [name for name in names if name not in without]
    styles = browser.run(
        """[...document.querySelectorAll('[data-chart="loss"] .series')].map((s) => [
        s.querySelector('.line').getAttribute('stroke-dasharray'), getComputedStyle(s.querySelector('.line')).stroke,
        s.querySelector('.mark').getAttribute('d').replace(/[-\\d.]+/g, '')].join())"""
    )
    assert len(set(styles)) == len(names)
    labels = browser.run("[...document.querySelectorAll('[data-chart=general] .label')].map((l) => l.textContent)")
    assert sorted(labels) == sorted(set(names) - {"FedProto"})


def test_the_big_page_is_small(browser: Browser, big: Path, record_property) -> None:
    assert big.stat().st_size < 8e6
    browser.open(big)
    paint = browser.run(
        """new Promise((done) => new PerformanceObserver((list) => done(list.getEntries()[0].startTime))
        .observe({ type: 'paint', buffered: true }))"""
    )
    record_property("first paint, ms", paint)  # for people to judge: a machine may be busy


def test_lines_are_where_the_numbers_say(browser: Browser, made: Path) -> None:
    browser.open(made)
    heights = browser.run(
        """Object.fromEntries([...document.querySelectorAll('[data-chart="general"] .series')].map((s) => {
        const line = s.querySelector('.line'), end = line.getPointAtLength(line.getTotalLength());
        return [s.dataset.name, end.y] }))"""
    )
    assert heights["FedETF"] < heights["FedAvg"]  # up is less in SVG, and 0.6 is above 0.3


def test_pointing_at_a_chart_shows_the_values(browser: Browser, made: Path) -> None:
    browser.open(made)
    browser.run("document.querySelector('[data-chart=general]').scrollIntoView({ block: 'center' })")
    box = browser.run("(({ x, y, width, height }) => [x + width * 0.93, y + height / 2])"
                      "(document.querySelector('[data-chart=general] svg').getBoundingClientRect())")  # fmt: skip
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    tip = browser.run("document.querySelector('[data-chart=general] .tip:not([hidden])').innerText")
    values = [
        json.loads((made.parent / f"fedetf-0.1-{seed}/rounds.jsonl").read_text().splitlines()[-1])["general"]
        for seed in (7, 8)
    ]
    assert "round 10" in tip
    assert f"{50 * sum(values):.1f} %" in tip
    assert f"{100 * min(values):.1f} % – {100 * max(values):.1f} %" in tip
    key = {"type": "keyDown", "key": "ArrowLeft", "code": "ArrowLeft"}
    browser.run("document.querySelector('[data-chart=general] svg').focus()")
    browser.send("Input.dispatchKeyEvent", **key)
    assert "round 9" in browser.run("document.querySelector('[data-chart=general] .tip').innerText")


def test_toggles_hide_a_line_in_every_chart(browser: Browser, made: Path) -> None:
    browser.open(made)
    press = "[...document.querySelectorAll('#toggles button')].find((b) => b.textContent === 'FedAvg').click()"
    pressed = "document.querySelector('#toggles button').getAttribute('aria-pressed')"
    both = ["FedAvg", "FedETF"]
    assert (lines(browser, "general"), lines(browser, "measure:nc2"), browser.run(pressed)) == (both, both, "true")
    browser.run(press)
    one = ["FedETF"]
    assert (lines(browser, "general"), lines(browser, "measure:nc2"), browser.run(pressed)) == (one, one, "false")
    browser.run(press)
    assert lines(browser, "general") == both
    for _ in both:
        browser.run("[...document.querySelectorAll('#toggles [aria-pressed=true]')][0].click()")
    assert lines(browser, "general") == []
    assert_quiet(browser, made)


def test_another_setting_or_another_partition_can_be_chosen(browser: Browser, made: Path) -> None:
    browser.open(made)
    options = browser.run("[...document.querySelectorAll('#view option')].map((o) => o.textContent)")
    assert options == [
        "all methods, alpha = 0.1",
        "all methods, alpha = 0.5",
        "FedAvg, all settings",
        "FedETF, all settings",
    ]
    line = "document.querySelector('[data-chart=general] .line').getAttribute('d')"
    disc = "document.querySelector('#holds .disc').getAttribute('d')"
    before = browser.run(line), browser.run(disc)
    for name, value in (("view", "setting:1"), ("holding", "1")):
        browser.run(
            f"(s => {{ s.value = '{value}'; s.dispatchEvent(new Event('change', {{bubbles: true}})) }})({name})"
        )
    assert browser.run(line) != before[0]
    assert browser.run(disc) != before[1]
    browser.run("(s => { s.value = 'variant:1'; s.dispatchEvent(new Event('change', {bubbles: true})) })(view)")
    assert lines(browser, "general") == ["alpha = 0.1", "alpha = 0.5"]


def contrast(one: str, other: str) -> float:
    """The WCAG contrast of two colours that are written as ``#rrggbb``."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_light_and_dark_have_contrast(browser: Browser, made: Path, scheme: str, dark: bool) -> None:
    browser.media(scheme=scheme)
    browser.open(made)
    names = ["paper", "ink", "quiet", "accent", *(f"c{i}" for i in range(6))]
    variable = "(n) => getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim()"
    paper, ink, quiet, accent, *series = browser.run(f"{json.dumps(names)}.map({variable})")
    assert (contrast(paper, "#000000") < contrast(paper, "#ffffff")) == dark
    assert contrast(paper, ink) > 12
    assert min(contrast(paper, c) for c in (quiet, accent, *series)) > 4.5
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert background == f"rgb({', '.join(str(int(paper[i : i + 2], 16)) for i in (1, 3, 5))})"
    browser.media()


@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_narrow_page_does_not_scroll_sideways(browser: Browser, big: Path, made: Path, width: int) -> None:
    for page in (big, made):
        browser.open(page, width=width, height=844)
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("Math.max(...[...document.querySelectorAll('[data-chart] .plot')]"
                           ".map((p) => p.getBoundingClientRect().right))") <= width  # fmt: skip


def test_on_paper_it_is_light_and_nothing_sticks_out(browser: Browser, made: Path) -> None:
    browser.media("print", "dark")
    browser.open(made, width=700)
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("getComputedStyle(document.querySelector('.controls')).position") == "static"
    assert browser.run("document.documentElement.scrollWidth") <= 700
    browser.media()
    browser.open(made)
    pdf = base64.b64decode(browser.send("Page.printToPDF")["data"])
    assert pdf.startswith(b"%PDF-")
    assert lines(browser, "general") == ["FedAvg", "FedETF"]  # drawn anew for the screen
    assert_quiet(browser, made)


def test_names_that_hold_markup_are_text(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "a<b>&'\"" / "run <i>"
    make_run(folder, NASTY.replace("/", "\\"), measures=[NASTY], classes=[NASTY, "two"], **{"data.name": NASTY})
    other = tmp_path / "a<b>&'\"" / "other"
    make_run(other, "fedavg", measures=[NASTY], classes=["$one", "two"], **{"data.name": "a&amp;b"})
    (folder.parent / "bad").mkdir()
    (folder.parent / "bad" / "error.part").write_text(NASTY)
    page = write_report([tmp_path], tmp_path / "page.html").path
    browser.open(page)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    browser.run("new Promise((done) => setTimeout(done, 50))")
    assert_quiet(browser, page)
    assert browser.run("window.hacked") is None
    assert browser.run("document.querySelectorAll('img, i, script:not([id])').length") == 1  # the page's own script
    shown = browser.run("document.body.innerText")
    assert shown.count("onerror=window.hacked=1>") > 5
    assert "a<b>&'\"" in shown
    assert "a&amp;b" in shown


def test_without_scripts_the_tables_are_there(browser: Browser, made: Path) -> None:
    browser.open(made, scripts=False)
    shown = browser.run("document.body.innerText")
    assert "The charts need JavaScript. The tables do not." in shown
    assert "Differences to FedETF" in shown
    assert browser.run("[...document.querySelectorAll('table')].filter((t) => t.offsetHeight > 20).length") >= 4
    assert browser.run("document.querySelector('.controls').offsetHeight") == 0
    browser.open(made)


@pytest.mark.slow
def test_a_large_comparison_is_whole_and_light(browser: Browser, wide: Path) -> None:
    assert wide.stat().st_size < 8_000_000
    for width, height in ((1280, 900), (390, 844)):
        browser.open(wide, width=width, height=height)
        browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true })")
        browser.run("new Promise((done) => setTimeout(done, 300))")
        assert_quiet(browser, wide)
        charts = browser.run("[...document.querySelectorAll('[data-chart]')].map((f) => f.dataset.chart)")
        names = [METHODS[method].__name__ for method in TEN]
        assert lines(browser, "general") == [n for n in [*names, "Local", "Pooled"] if n != "FedProto"]
        for chart in charts:  # all are drawn, and none has a single tick
            ticks = browser.run(
                f"""(() => {{ const marks = [...document.querySelectorAll('[data-chart="{chart}"] .plot svg > text')];
                const numbers = marks.filter((t) => /^[-\\d.,]+( %)?$/.test(t.textContent.trim()));
                return ["end", "middle"].map((a) => numbers.filter((t) => t.getAttribute("text-anchor") === a).length);
                }})()"""
            )
            assert min(ticks) >= 2, (chart, width, ticks)
        assert browser.run("document.documentElement.scrollWidth") <= width
        scrolled = browser.run("document.querySelectorAll('#results .scroll.wide').length")
        assert scrolled == browser.run(
            "[...document.querySelectorAll('#results .scroll')].filter((b) => b.scrollWidth > b.clientWidth + 1).length"
        )
        assert scrolled > 0
    grey = "getComputedStyle(document.querySelector('[data-chart=general] [data-name=Pooled] .line')).stroke"
    assert browser.run(grey) == browser.run("getComputedStyle(document.querySelector('.subtitle')).color")
