"""What every page must look like in a browser, as lines of JavaScript and one check of all of them."""

from __future__ import annotations

from pathlib import Path

from tests.browser import Browser

OVERLAPS = """[...document.querySelectorAll("figure.chart > svg")].flatMap((svg) => {
  const title = svg.parentElement.querySelector("figcaption").textContent, around = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
  const found = texts.filter(([, a]) => a.left < -0.5 || a.right > innerWidth + 0.5 || a.top < around.top - 0.5 || a.bottom > around.bottom + 0.5)
    .map(([text]) => `${title}: ${text} is cut off`);
  texts.forEach(([first, a], i) => texts.slice(i + 1).forEach(([second, b]) => {
    if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom) found.push(`${title}: ${first} on ${second}`);
  }));
  return found;
})"""
PARTS = """[...document.querySelectorAll("figure.chart")].flatMap((figure) => {
  const parts = [...figure.querySelectorAll(":scope > figcaption, .legend li, :scope > svg")].map((part) => part.getBoundingClientRect());
  return parts.flatMap((a, i) => parts.slice(i + 1).filter((b) =>
    a.left < b.right - 0.5 && b.left < a.right - 0.5 && a.top < b.bottom - 0.5 && b.top < a.bottom - 0.5)
    .map(() => figure.querySelector("figcaption").textContent));
})"""
SMALLEST = "Math.min(...[...document.querySelectorAll('figure.chart > svg text')].map((t) => t.getBoundingClientRect().height))"


def check_looks(browser: Browser, page: Path, width: int, *, dark: bool = False) -> None:
    """A silent console, no request, nothing on top of anything else, nothing too wide or too small."""
    browser.open(page, width, dark=dark)
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]
    assert browser.value(OVERLAPS) == []
    assert browser.value(PARTS) == []
    assert browser.value("document.documentElement.scrollWidth") <= width  # wide tables scroll by themselves
    assert (browser.value(SMALLEST) or 10) >= 10
