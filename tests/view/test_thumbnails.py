"""A page shows the thumbnails that a text names and that the run has kept, and no others."""

import browser_pages
import pytest
import synthetic_traces
from browser_pages import serving, soon, until
from PIL import Image

from trl_grpo_plus.traces import images
from trl_grpo_plus.view import write_comparison, write_page


browser, opened = browser_pages.browser, browser_pages.opened  # fixtures

KEPT, ALSO = Image.new("RGB", (64, 32), (200, 0, 0)), Image.new("L", (20, 20), 90)
LOST = Image.new("RGB", (8, 8))


def block(picture):
    return {"type": "image", "image": images.image_name(picture)}


def said(picture):
    return f"<image {images.image_name(picture)}>"


def a_run(folder, told=""):
    """Write a run whose prompt has two pictures, one of them kept, and whose tool returns a third, kept one.

    The policy writes `told` at the end of its texts.
    """
    prompt = [{"role": "user", "content": [block(KEPT), block(LOST), {"type": "text", "text": "What is it?"}]}]
    tool = {"role": "tool", "name": "zoom", "content": [block(ALSO)]}
    groups = [synthetic_traces.group([1.0, 0.0], length=3, step=step, prompt=prompt) for step in (0, 3)]
    for rows in groups:
        for row in rows:
            row["completion"] = [{"role": "assistant", "content": f"{row['completion']} {told}"}, tool]
    synthetic_traces.write_traces(folder, groups, about={"rewards": {"accuracy": 1.0}})
    small = {images.image_name(picture): images.thumbnail(picture, 16) for picture in (KEPT, ALSO)}
    images.keep(folder / "rollouts", small)
    return folder


def sizes(page, within):
    """Return [width, height] of each picture that has been drawn."""
    drawn = "(all) => all.map((img) => [img.naturalWidth, img.naturalHeight])"
    return page.locator(f"{within} img").evaluate_all(drawn)


@pytest.mark.parametrize("served", [False, True])
def test_a_kept_thumbnail_is_shown_where_a_text_names_it(browser, tmp_path, served):
    run = a_run(tmp_path / "run", told=f"{said(LOST)} <image ../../thumbnails/RGB 64x32 0123456789abcdef>")
    written = write_page(run, tmp_path / "page.html").path
    with serving(run) as server, browser_pages.quiet(browser) as open_page:
        page = open_page(server.address if served else written)
        until(page, "[...document.images].every((img) => img.complete)")
        soon(lambda: sizes(page, ".prompt") == [[16, 8]])
        soon(lambda: sizes(page, ".attempt") == [[16, 16]] * 2)
        soon(lambda: page.locator(".prompt img").get_attribute("alt") == f"image {images.image_name(KEPT)}")
        soon(lambda: said(LOST) in page.locator(".prompt").inner_text())


def test_thumbnails_are_shown_in_the_page_of_several_runs(browser, tmp_path):
    runs = [a_run(tmp_path / name) for name in ("first", "second")]
    with browser_pages.quiet(browser, ".one, .empty", offline=True) as open_page:
        page = open_page(write_comparison(runs).path)
        until(page, "[...document.images].every((img) => img.complete)")
        soon(lambda: sizes(page, "#task") == [[16, 8]])
        soon(lambda: sizes(page, ".one") == [[16, 16]] * 4)


def test_a_picture_that_the_policy_names_is_shown_if_the_run_kept_it(opened, tmp_path):
    page = opened(write_page(a_run(tmp_path / "run", told=said(KEPT)), tmp_path / "page.html").path)
    until(page, "[...document.images].every((img) => img.complete)")
    soon(lambda: sizes(page, ".attempt") == [[16, 8], [16, 16]] * 2)
