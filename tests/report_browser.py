"""The report in a real browser: Debian's Chromium without a window, driven by selenium."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

WIDTHS = (390, 820, 1400)
SCHEMES = ("light", "dark")
ENOUGH_CONTRAST = 4.5  # WCAG 2.2, success criterion 1.4.3, level AA, for text of any size
SECTIONS = (
    "claims", "gateway", "rounds-aof", "configurations", "trade-off", "runs", "proof", "attempts",
    "environment", "limits",
)  # fmt: skip

# The part of every text that its colour hides, by the formula of WCAG 2.2.
FAINT = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const seen = new Map();
function rgb(colour) {
  if (!seen.has(colour)) {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    seen.set(colour, Array.from(canvas.getImageData(0, 0, 1, 1).data));
  }
  return seen.get(colour);
}
const light = c => c.slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
function behind(element) {
  for (let e = element; e; e = e.parentElement) {
    const back = rgb(getComputedStyle(e).backgroundColor);
    if (back[3] === 255) return back;
  }
  return [255, 255, 255, 255];
}
const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const element = walk.currentNode.parentElement, text = walk.currentNode.data.trim();
  if (!text || !element.checkVisibility() || element.closest('style')) continue;
  const style = getComputedStyle(element);
  const ink = rgb(element.closest('svg') ? style.fill : style.color);
  const [a, b] = [light(ink), light(behind(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < arguments[0]) found.push(`${ratio.toFixed(2)}: ${text.slice(0, 40)}`);
}
return [...new Set(found)];
"""

STRUCTURE = """
const found = [], named = e => e.getAttribute('aria-label') ||
  document.getElementById(e.getAttribute('aria-labelledby'))?.textContent;
let level = 0;
for (const heading of document.querySelectorAll('h1, h2, h3, h4, h5, h6')) {
  const here = Number(heading.tagName[1]);
  if (here > level + 1) found.push(`h${here} after h${level}: ${heading.textContent}`);
  level = here;
}
if (document.querySelectorAll('h1').length !== 1) found.push('not one h1');
for (const table of document.querySelectorAll('table')) {
  const name = table.caption?.textContent.trim();
  if (!name) found.push(`a table without a caption: ${table.textContent.slice(0, 60)}`);
  if (!table.parentElement.matches('.scroll')) found.push(`${name}: no box to scroll in`);
  if (table.querySelector('th:not([scope])')) found.push(`${name}: a th without scope`);
  if (table.querySelector('tbody tr:not(:has(> th))')) found.push(`${name}: a row without a th`);
}
const names = [];
for (const box of document.querySelectorAll('.scroll')) {
  names.push(named(box));
  if (!named(box) || box.tabIndex !== 0 || box.getAttribute('role') !== 'region')
    found.push(`a box that is no named region: ${box.textContent.slice(0, 60)}`);
}
for (const name of names) if (names.indexOf(name) !== names.lastIndexOf(name))
  found.push(`two boxes of one name: ${name}`);
for (const svg of document.querySelectorAll('svg'))
  if (!svg.closest('[aria-hidden=true]') && !svg.closest('[role=img][aria-label]'))
    found.push(`a picture without words: ${svg.outerHTML.slice(0, 60)}`);
for (const plot of document.querySelectorAll('.plot:has(> svg)'))
  if (!plot.matches('[role=img][aria-label]')) found.push('a plot without words');
return found;
"""

TOO_WIDE = """
for (const folded of document.querySelectorAll('details')) folded.open = true;
const room = document.documentElement.clientWidth, wide = [];
for (const e of document.querySelectorAll('body *')) {
  const box = e.getBoundingClientRect();
  if (!e.closest('.scroll') && !e.closest('svg') && box.width && box.right > room + 0.5)
    wide.push(`${e.tagName} ${e.className} ${e.textContent.slice(0, 40)}`);
}
return [document.documentElement.scrollWidth - room, wide.slice(0, 5)];
"""


def programs() -> tuple[str, str]:
    """Give the browser and its driver, or skip the test; under CI their absence fails it."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser and driver:
        return browser, driver
    why = "Debian's packages chromium and chromium-driver are needed"
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


@contextmanager
def opened(page: Path, folder: Path) -> Iterator[webdriver.Chrome]:
    """Show a page; `folder` is for what the browser writes."""
    browser, driver = programs()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in ("headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-sync",
                 "disable-background-networking", "disable-component-update",
                 "disable-dev-shm-usage", f"user-data-dir={folder / 'profile'}"):  # fmt: skip
        options.add_argument(f"--{flag}")
    # With the driver's path given, selenium looks for none and fetches none.
    shown = webdriver.Chrome(options=options, service=Service(executable_path=driver))
    try:
        shown.set_script_timeout(60)
        shown.get(page.as_uri())
        yield shown
    finally:
        shown.quit()


def set_width(shown: webdriver.Chrome, width: int) -> None:
    """Give the page a width in CSS px; a window could not be as narrow as a phone."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    shown.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    _wait(shown, f"return innerWidth === {width}")


def set_media(shown: webdriver.Chrome, scheme: str = "light", media: str = "screen") -> None:
    """Show the page as one who prefers `scheme` sees it, on the screen or in print."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    shown.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    _wait(
        shown,
        f"return matchMedia('{media}').matches"
        f" && matchMedia('(prefers-color-scheme: {scheme})').matches",
    )


def keep_picture(shown: webdriver.Chrome, path: Path) -> None:
    """Write what the page's first screen looks like, as PNG."""
    shown.execute_script("scrollTo(0, 0)")
    path.write_bytes(base64.b64decode(shown.get_screenshot_as_base64()))


def check_structure(shown: webdriver.Chrome) -> None:
    """Every section is there; headings, tables, boxes and pictures are made for a reader."""
    ids = shown.execute_script("return [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert [name for name in ids if name in SECTIONS] == list(SECTIONS)
    targets = shown.execute_script(
        "return [...document.querySelectorAll('nav a')].map(e => e.hash.slice(1))"
    )
    assert len(targets) >= 7
    assert set(targets) <= set(ids)
    assert shown.execute_script(STRUCTURE) == []


def check_widths(shown: webdriver.Chrome, folder: Path) -> None:
    """Nothing but the boxes scrolls sideways, with everything unfolded; keeps pictures."""
    for width in WIDTHS:
        set_width(shown, width)
        for scheme in SCHEMES:
            set_media(shown, scheme)
            keep_picture(shown, folder / f"report-{width}-{scheme}.png")
        assert shown.execute_script(TOO_WIDE) == [0, []], width


def check_schemes(shown: webdriver.Chrome) -> None:
    """Both colour schemes are really two, and every text can be read in them and in print."""
    papers = set()
    shown.execute_script("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    for scheme in SCHEMES:
        set_media(shown, scheme)
        papers.add(shown.execute_script("return getComputedStyle(document.body).backgroundColor"))
        assert shown.execute_script(FAINT, ENOUGH_CONTRAST) == [], scheme
    assert len(papers) == 2
    set_media(shown, "dark", "print")
    assert shown.execute_script(FAINT, ENOUGH_CONTRAST) == []
    set_media(shown)


def check_print(shown: webdriver.Chrome) -> None:
    """What is folded on the screen is printed; a printed page has boxes that cut nothing off."""
    folded = "return [...document.querySelectorAll('details:not([open]) .scroll, "
    folded += "details:not([open]) dl')].map(e => e.checkVisibility({contentVisibilityAuto: true}) "
    folded += "&& e.getBoundingClientRect().height > 0)"
    shown.execute_script("document.querySelectorAll('details').forEach(e => { e.open = false; })")
    assert not any(shown.execute_script(folded))
    set_media(shown, media="print")
    # What a medium unfolds is laid out some frames later.
    _wait(
        shown, f"const seen = (() => {{ {folded} }})(); return seen.length && seen.every(Boolean)"
    )
    cut = "return [...document.querySelectorAll('.scroll')].filter("
    assert (
        shown.execute_script(cut + "e => getComputedStyle(e).overflow !== 'visible').length") == 0
    )
    set_media(shown)


def check_keyboard(shown: webdriver.Chrome) -> None:
    """Tab reaches the skip link first and then every box that scrolls; arrows move in one."""
    set_width(shown, 820)
    shown.execute_script(
        "document.querySelectorAll('details').forEach(e => { e.open = true; });"
        "[...document.querySelectorAll('.scroll')].forEach((e, i) => { e.dataset.box = i; });"
    )
    _press(shown, Keys.TAB)
    first = shown.execute_script(
        "const e = document.activeElement, box = e.getBoundingClientRect();"
        "return [e.className, e.hash, box.top >= 0 && box.width > 40];"
    )
    assert first == ["skip", "#main", True]
    _press(shown, Keys.ENTER)
    _press(shown, Keys.TAB)
    assert shown.execute_script("return document.querySelector('main').matches(':focus-within')")
    boxes, moved = set(), False
    stops = shown.execute_script(
        "return document.querySelectorAll('a, summary, [tabindex=\"0\"]').length"
    )
    for _ in range(stops):
        name, box, outline, room = shown.execute_script(
            "const e = document.activeElement;"
            "return [`${e.tagName} ${e.className} ${e.hash}`, e.dataset.box,"
            " getComputedStyle(e).outlineStyle, e.scrollWidth - e.clientWidth]"
        )
        if name.startswith("BODY"):
            break
        assert outline != "none", f"no mark of the focus on {name}"
        if box is not None:
            boxes.add(int(box))
            if room > 20 and not moved:
                _press(shown, Keys.ARROW_RIGHT)
                moved = _moves(shown)
                assert moved
        _press(shown, Keys.TAB)
    there = shown.execute_script("return document.querySelectorAll('.scroll').length")
    assert boxes == set(range(there))
    assert moved


def check_console(shown: webdriver.Chrome) -> None:
    """The browser has said nothing about the page, and the page has fetched nothing."""
    log: list[dict[str, Any]] = shown.get_log("browser")
    assert log == []
    names = "return performance.getEntriesByType('resource').map(e => e.name)"
    assert [n for n in shown.execute_script(names) if not n.startswith("data:")] == []


def _wait(shown: webdriver.Chrome, script: str) -> None:
    """Wait until a script gives something true: what is set of a page takes some frames."""
    WebDriverWait(shown, 30, poll_frequency=0.05).until(lambda s: s.execute_script(script), script)


def _press(shown: webdriver.Chrome, key: str) -> None:
    webdriver.ActionChains(shown, duration=0).send_keys(key).perform()


def _moves(shown: webdriver.Chrome) -> bool:
    """Say whether the box with the focus has moved sideways; scrolling takes some frames."""
    return bool(
        shown.execute_async_script(
            "const done = arguments[0], e = document.activeElement, until = Date.now() + 20000;"
            "(function look() { if (e.scrollLeft > 0 || Date.now() > until) done(e.scrollLeft > 0);"
            " else setTimeout(look, 20); })();"
        )
    )
