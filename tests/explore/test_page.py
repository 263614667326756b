"""The page as a person uses it, in a real browser."""

import re

import pytest
import torch
from browser import DESKTOP, PHONE, overflows_sideways, save_screenshot

from dgconv.analysis.likeness import jaccard
from dgconv.data.sample import sample
from dgconv.explore.page import static_page

REFUSED = "the server responded with a status of 4"  # what Chromium writes about each 4xx answer
CELLS = """
canvas => {
  const hex = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const rgb = (name) => [1, 3, 5].map((i) => parseInt(hex(name).slice(i, i + 2), 16)).join();
  const names = Object.fromEntries(["--a", "--b", "--both", "--unusual", "--empty"].map((name) => [rgb(name), name]));
  const [, heads, channels] = canvas.ariaLabel.match(/(\\d+) heads × (\\d+) channels/).map(Number);
  const cell = (parseFloat(canvas.style.width) - GUTTER) / channels, pen = canvas.getContext("2d"), cells = [];
  for (let head = 0; head < heads; head++)
    for (let channel = 0; channel < channels; channel++) {
      const x = GUTTER + (channel + 0.4) * cell, y = head * (ROW + STRIP + GAP) + ROW / 2;
      cells.push(names[pen.getImageData(x, y, 1, 1).data.slice(0, 3).join()]);
    }
  return cells;
}
"""  # the colour in the middle of each cell, by its name in the style sheet


def overlap_of(first, second):
    """The mean over the layers of the index that the similarity figure shows."""
    return float(torch.stack([jaccard(torch.stack(pair))[0, 1] for pair in zip(first, second, strict=True)]).nanmean())


def settled(page, rate="0.75"):
    """Waits until everything at a rate is on show, the average image included."""
    page.wait_for_selector(f"body[data-rate='{rate}']:not([data-average=''])")
    return page


def slide_to(page, rate):
    place = page.evaluate(f"data.rates.indexOf({rate})")
    page.locator("#rate").press("Home")
    for _ in range(place):
        page.locator("#rate").press("ArrowRight")
    return settled(page, rate)


def shown_macs(page, letter="A"):
    strong = page.locator(f"#card-{letter} .macs")
    exact = int(re.sub(r"\D", "", strong.get_attribute("title")))
    assert strong.inner_text() == f"{exact / 1e6:#.3g} M MACs", "the printed number is that one"
    assert page.locator("#about").inner_text().endswith("MACs by the ‘paper’ convention")
    return exact


def thumb(page, id):
    return page.locator(f"#strip button[title^='test image {id},']")


def shown_cells(page):
    return [canvas.evaluate(CELLS) for canvas in page.locator(".layer canvas").all()]


def cells(first, second):
    return list(zip(first.flatten().int().tolist(), second.flatten().int().tolist(), strict=True))


def usual_channels(session, rate):
    """By layer, the channels that at least half of the test images keep."""
    recording = session.network(rate).record(sample(session.run.data.test, 250, 50))
    return [layer.kept / recording.images >= 0.5 for layer in recording.layers.values()]


def check_the_controls(page, session, directly):
    """What the live page and the one on disk have in common; test images 0, 90 and 150 must be offered."""
    folder = session.run.folder
    settled(page)
    thumb(page, 90).click()
    page.wait_for_selector("#card-A .name:text-is('test image 90')")
    assert thumb(page, 90).get_attribute("aria-pressed") == "true"
    for rate in (*session.rates, 0.5):
        slide_to(page, rate)
        assert page.locator("#rate-value").inner_text() == f"{rate:.2f}"
        assert shown_macs(page) == round(directly(folder, 90, rate).macs)
    masks = directly(folder, 90, 0.5).masks
    usual = usual_channels(session, 0.5)
    colours = {(1, 1): "--a", (1, 0): "--unusual", (0, 0): "--empty", (0, 1): "--empty"}  # the last is a frame
    assert shown_cells(page) == [[colours[cell] for cell in cells(*pair)] for pair in zip(masks, usual, strict=True)]
    page.locator("#compare").click()
    assert thumb(page, 0).evaluate("thumb => thumb === document.activeElement"), "ready to be chosen by keyboard"
    thumb(page, 150).click()
    page.wait_for_selector("#overlap")
    others = directly(folder, 150, 0.5).masks
    colours = {(1, 1): "--both", (1, 0): "--a", (0, 1): "--b", (0, 0): "--empty"}
    assert shown_cells(page) == [[colours[cell] for cell in cells(*pair)] for pair in zip(masks, others, strict=True)]
    expected = overlap_of(masks, others)
    assert 0.1 < expected < 1
    assert page.locator("#overlap").inner_text() == f"{expected:.3f}"
    assert shown_macs(page, "B") == round(directly(folder, 150, 0.5).macs)
    page.locator("#card-B button:text-is('Remove')").click()
    page.wait_for_selector("#overlap", state="detached")
    assert page.locator("#card-A .name").first.inner_text() == "test image 90"


@pytest.mark.slow
def test_live(served, browser_page, directly):
    page = browser_page()
    page.goto(served.url)
    check_the_controls(page, served.session, directly)


@pytest.mark.slow
def test_from_disk(session, browser_page, directly, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(static_page(session, ["0", "90", "150"], lambda rate: None))
    page = browser_page()
    page.goto(file.as_uri())
    check_the_controls(page, session, directly)
    assert not page.locator("#file").is_visible()
    assert not page.locator("#by-number").is_visible()


@pytest.mark.slow
def test_predictions(head_served, browser_page):
    page = settled_at(browser_page(), head_served)
    session = head_served.session
    image = session.images["0"]
    rows = page.locator("#card-A .top li").all()
    assert [row.locator(".name").inner_text() for row in rows] == [name for name, _ in session.look("0", 0.75)["top"]]
    widths = [float(row.locator(".bar i").evaluate("bar => parseFloat(bar.style.width)")) for row in rows]
    assert widths == pytest.approx([100 * share for _, share in session.look("0", 0.75)["top"]], abs=0.01)
    right = session.look("0", 0.75)["top"][0][0] == session.data.classes[image.label]
    assert ("right" if right else "wrong") in page.locator("#card-A .verdict").inner_text()
    assert "180 of the 360 test images" in page.locator("#summary").inner_text()
    assert re.search(r"MACs.*[0-9.]+ ms", page.locator("#card-A").inner_text(), re.DOTALL)


def test_how_much_the_choice_depends_on_the_image_is_said(head_served, browser_page):
    page = browser_page()
    page.goto(head_served.url)
    told = {0.97: "hardly depends", 0.7: "partly depends", 0.2: "chosen depends"}
    for share, words in told.items():
        said = page.evaluate("share => dependence({ images: 8, sameForAll: share })", share)
        assert words in said
        assert f"in {100 * share:.0f}" in said


def test_what_it_is_worth_to_look_at_the_image_is_said_of_each_layer(head_served, browser_page):
    page = settled_at(browser_page(), head_served)
    page.wait_for_selector(".layer .worth:not(:empty)")
    worth, said = head_served.session.worth(), page.locator(".layer .worth").all_inner_texts()
    assert len(said) == len(worth["layers"])
    for text, layer in zip(said, worth["layers"], strict=True):
        assert [float(points.replace("−", "-")) for points in re.findall(r"[+−][0-9.]+", text)] == pytest.approx(
            layer, abs=0.051
        )


def settled_at(page, server):
    page.goto(server.url)
    return settled(page)


def file_of(name, content):
    return {"name": name, "mimeType": "application/octet-stream", "buffer": content}


def test_numbers_of_macs(head_served, browser_page):
    page = browser_page()
    page.goto(head_served.url)
    told = {7_800_816: "7.80 M", 999_400_000: "999 M", 999_600_000: "1.00 G", 1_814_073_344: "1.81 G"}
    assert page.evaluate("counts => counts.map(formatMacs)", list(told)) == list(told.values())


@pytest.mark.slow
def test_uploads(head_served, browser_page, encoded, a_photo):
    page = settled_at(browser_page(expected_errors=(REFUSED,)), head_served)
    alert, name = page.locator("#error"), page.locator("#card-A .name").first
    good = encoded(a_photo)
    page.set_input_files("#file", file_of("<b>mine</b>.png", good))
    page.wait_for_selector("#card-A .name:text-is('<b>mine</b>.png')")
    assert "your own" in page.locator("#card-A .verdict").inner_text()
    before = shown_macs(page)
    slide_to(page, 0.25)
    assert shown_macs(page) > before

    for content, message in ((b"no image", "no known image format"), (good[:100], "cannot read the image")):
        page.set_input_files("#file", file_of("bad.png", content))
        alert.filter(has_text=message).wait_for()
        assert alert.is_visible()
        assert name.inner_text() == "<b>mine</b>.png", "what was there stays"
    page.evaluate("data.maxBytes = 10")
    page.set_input_files("#file", file_of("large.png", good))
    alert.filter(has_text="large.png has").wait_for()

    page.evaluate("data.maxBytes = 1e6")
    page.set_input_files("#file", file_of("next.png", good))
    page.wait_for_selector("#card-A .name:text-is('next.png')")
    assert not alert.is_visible()


@pytest.mark.slow
def test_the_slider_asks_once_and_shows_the_last(head_served, browser_page):
    page = settled_at(browser_page(), head_served)
    at_trained, asked = shown_macs(page), []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    page.evaluate("""() => {
      for (const place of [1, 0, 1, 0]) {
        document.getElementById("rate").value = place;
        document.getElementById("rate").dispatchEvent(new Event("input"));
      }
    }""")
    settled(page, "0.25")
    assert [what for what in asked if what != "worth"] == ["look?image=0&rate=0.25", "average?rate=0.25"]

    page.evaluate("""() => {
      const look = source.look;  // as if the network were slow at this rate
      source.look = (image, rate) =>
        new Promise((done) => setTimeout(() => done(look(image, rate)), data.rates[rate] === 0.5 ? 700 : 0));
    }""")
    page.locator("#rate").press("ArrowRight")
    page.wait_for_timeout(300)
    page.locator("#rate").press("End")
    settled(page, "0.75")
    page.wait_for_timeout(800)
    assert shown_macs(page) == at_trained
    assert page.locator("body").get_attribute("data-rate") == "0.75"


@pytest.mark.slow
def test_dropping_a_file(head_served, browser_page, encoded, a_photo):
    page = settled_at(browser_page(), head_served)
    transfer = page.evaluate_handle(
        """bytes => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(bytes)], "dropped.png"));
          return transfer;
        }""",
        list(encoded(a_photo)),
    )
    page.dispatch_event("body", "dragover", {"dataTransfer": transfer})
    assert page.locator("#drop").is_visible()
    page.dispatch_event("body", "drop", {"dataTransfer": transfer})
    page.wait_for_selector("#card-A .name:text-is('dropped.png')")
    assert not page.locator("#drop").is_visible()


@pytest.mark.slow
def test_by_number_and_by_keyboard(head_served, browser_page):
    page = settled_at(browser_page(expected_errors=(REFUSED,)), head_served)
    page.locator("#number").fill("4711")
    page.locator("#number").press("Enter")
    page.wait_for_selector("#error:not([hidden])")
    assert "from 0 to 359" in page.locator("#error").inner_text()
    page.locator("#number").fill("123")
    page.locator("#number").press("Enter")
    page.wait_for_selector("#card-A .name:text-is('test image 123')")
    assert page.locator("#error").is_hidden()

    page.locator("input[name=slot][value=A]").press("ArrowRight")
    thumb(page, 30).press("Enter")
    page.wait_for_selector("#card-B .name:text-is('test image 30')")

    page.locator("#rate").focus()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "CANVAS":
            break
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    told = page.locator("#readout").inner_text()
    session = head_served.session
    first = next(iter(session.layers))
    assert told.startswith(f"{first} · head 2, channel 1: ")
    kept = [session.network(0.75).choose(session.images[id].x).kept[first][1, 1].item() for id in ("123", "30")]
    meaning = {(1, 1): "both keep it", (1, 0): "only A keeps it", (0, 1): "only B keeps it", (0, 0): "neither keeps it"}
    assert meaning[tuple(map(int, kept))] in told


@pytest.mark.slow
def test_by_finger(head_served, browser_page):
    page = settled_at(browser_page(PHONE, has_touch=True, is_mobile=True), head_served)
    for canvas, layer in zip(page.locator("canvas").all()[:2], head_served.session.layers, strict=False):
        canvas.tap(position={"x": 20, "y": 5})
        assert page.locator("#readout").inner_text().startswith(f"{layer} · head 1, channel 0: ")
    page.locator("h2").tap()
    assert page.locator("#readout").is_hidden()


@pytest.mark.slow
def test_back_to_the_page(head_served, browser_page):
    page = settled_at(browser_page(), head_served)
    page.locator("input[name=slot][value=A]").press("ArrowRight")
    slide_to(page, 0.25)
    page.goto("about:blank")
    page.go_back()
    settled(page)
    assert page.evaluate("data.rates[document.getElementById('rate').value]") == 0.75, "the slider is where the rate is"
    assert page.locator("input[name=slot]:checked").input_value() == "A"


@pytest.mark.slow
def test_focus_stays_in_the_card(head_served, browser_page):
    page = settled_at(browser_page(), head_served)
    page.locator("#compare").press("Enter")
    thumb(page, 30).press("Enter")
    page.wait_for_selector("#overlap")
    page.locator("#card-B button").focus()
    page.evaluate("refresh()")
    settled(page)
    page.keyboard.press("Enter")
    page.wait_for_selector("#overlap", state="detached")
    assert page.evaluate("document.activeElement.id") == "compare"


def test_numbers_of_rates(head_served, browser_page):
    page = browser_page()
    page.goto(head_served.url)
    told = {0.5: "0.50", 0.75: "0.75", 0.875: "0.875", 0: "0.00", 0.12345678: "0.1235", 0.3: "0.30"}
    assert page.evaluate("rates => rates.map(formatRate)", list(told)) == list(told.values())


@pytest.mark.slow
def test_old_answers_look_old(head_served, browser_page):
    page = settled_at(browser_page(), head_served)
    opacity = "Number(getComputedStyle(document.querySelector('.cards')).opacity)"
    page.evaluate("""() => {
      const look = source.look;
      source.look = (image, rate) => new Promise((done) => (window.answer = () => done(look(image, rate))));
    }""")
    page.locator("#rate").press("Home")
    page.wait_for_selector("body.old")
    assert page.evaluate(opacity) < 1, "the rate is another one already"
    page.evaluate("answer()")
    settled(page, "0.25")
    assert page.evaluate(opacity) == 1

    page.evaluate("() => void (source.look = () => Promise.reject(new Error('no answer')))")
    page.locator("#rate").press("ArrowRight")
    page.wait_for_selector("#error:not([hidden])")
    assert page.evaluate(opacity) < 1


def test_a_server_that_is_gone(head_served, browser_page):
    page = settled_at(browser_page(expected_errors=("ERR_CONNECTION_REFUSED",)), head_served)
    head_served.shutdown()
    head_served.server_close()
    thumb(page, 60).click()
    page.wait_for_selector("#error:not([hidden])")
    assert "still running" in page.locator("#error").inner_text()


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_looks(head_served, browser_page, size, dark):
    page = settled_at(browser_page(size, dark=dark), head_served)
    name = f"explore-{'phone' if size is PHONE else 'desktop'}-{'dark' if dark else 'light'}"
    save_screenshot(page, f"{name}-one", full_page=True)
    assert not overflows_sideways(page)
    page.locator("#compare").click()
    page.locator(".thumb").nth(5).click()
    page.wait_for_selector("#overlap")
    save_screenshot(page, f"{name}-two", full_page=True)
    assert not overflows_sideways(page)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) < 200) == dark
