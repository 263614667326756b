"""The page in a real browser."""

import json

import pytest
from browser import DESKTOP, PHONE, overflows_sideways, save_screenshot

from dgconv.analysis.trained_run import TrainedRun
from dgconv.report import gather, write_page
from dgconv.runs.metrics import read_metrics

HOSTILE = """</script><script>window.hacked = 1</script><img src=x onerror="hacked = 1">'" $\\frac$ [/b] {{ 7 * 7 }}"""


def column_of(page, table: str, heading: str) -> int:
    """Where a column is, counted from 1."""
    return texts(page, f"{table} thead th").index(heading) + 1


def values(page, table: str, heading: str) -> list[float | None]:
    """Of a column, from top to bottom, as the table now stands."""
    cells = page.locator(f"{table} tbody tr > :nth-child({column_of(page, table, heading)})")
    return cells.evaluate_all("cells => cells.map(c => c.dataset.value === undefined ? null : Number(c.dataset.value))")


def texts(page, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_text_contents()]


@pytest.fixture
def page(browser_page, report_file):
    page = browser_page(DESKTOP)
    page.goto(report_file.as_uri())
    return page


@pytest.mark.slow
def test_numbers_are_those_of_the_runs(page, report_runs):
    assert page.locator(".results tbody tr").count() == len(report_runs)
    last = [read_metrics(run.folder)[-1] for run in report_runs]
    assert values(page, ".results", "Test error") == [line["test_error"] for line in last]
    assert texts(page, ".results tbody td:nth-child(2)") == [f"{line['test_error']:.2f} %" for line in last]
    assert values(page, ".results", "MACs ‘authors’") == [run.macs("authors").macs for run in report_runs]
    assert values(page, ".results", "MACs ‘paper’") == [run.macs("paper").macs for run in report_runs]
    assert values(page, ".results", "Left out") == [line["pruned_share"] for line in last]
    for number, run in enumerate(report_runs, start=1):
        table = f"section[aria-labelledby=run-{number}] .layers"
        layers = run.macs("paper").layers
        assert texts(page, f"{table} tbody th") == [layer.name for layer in layers]
        assert values(page, table, "MACs") == [layer.macs for layer in layers]
        total = page.locator(f"{table} tfoot td:nth-child(5)").get_attribute("data-value")
        assert float(total) == sum(layer.macs for layer in layers)
        assert page.locator(f"{table} tfoot td:nth-child(5)").text_content() == f"{float(total) / 1e6:.4f}M"


@pytest.mark.slow
@pytest.mark.parametrize("heading", ["#", "Output", "MACs", "Kept share", "Time, µs"])
def test_tables_sort(page, heading):
    table = "section[aria-labelledby=run-2] .layers"
    before = values(page, table, heading)
    present = [value for value in before if value is not None]
    gaps = [None] * (len(before) - len(present))
    assert len(set(present)) > 1
    header = page.locator(f"{table} thead th:nth-child({column_of(page, table, heading)})")
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert values(page, table, heading) == sorted(present, reverse=True) + gaps, "empty cells last"
    header.locator("button").focus()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    assert values(page, table, heading) == sorted(present) + gaps
    other = page.locator(f"{table} thead th:nth-child(2)")
    other.locator("button").press("Space")
    assert header.get_attribute("aria-sort") == "none"
    assert other.get_attribute("aria-sort") == "ascending"
    names = texts(page, f"{table} tbody th")
    assert names[0] == "classifier"
    assert names == sorted(names)
    assert len(set(names)) == len(before), "no row lost"


@pytest.mark.slow
def test_only_the_clicked_table_sorts(page):
    page.locator("section[aria-labelledby=run-1] .layers thead th:nth-child(5) button").click()
    numbers = values(page, "section[aria-labelledby=run-2] .layers", "#")
    assert numbers == sorted(numbers)


def test_what_choices_are_worth_is_told(page, contents):
    table = contents.sections[0].layers
    dynamic = [layer for layer in table.layers if layer.worth]
    assert dynamic
    assert table.images_frozen
    there = "section[aria-labelledby=run-1] .worth"
    assert texts(page, f"{there} tbody th") == [layer.name for layer in dynamic]
    assert values(page, there, "One choice") == pytest.approx([layer.worth.choice for layer in dynamic])
    assert values(page, there, "One gate") == pytest.approx([layer.worth.gate for layer in dynamic])


def test_curves_can_be_read(page, report_runs):
    metrics = [read_metrics(run.folder) for run in report_runs]
    data = json.loads(page.locator("#chart-data").text_content())
    solid = [curve for curve in data["charts"][0]["curves"] if not curve["dashed"]]
    assert [curve["values"] for curve in solid] == [[line["test_error"] for line in lines] for lines in metrics]
    chart = page.locator("[data-chart='0']")
    said = page.locator(".chart output").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 0.99 * box["width"], box["y"] + 0.5 * box["height"])
    assert said.text_content().startswith("epoch 3: ")
    for run, lines in zip(data["runs"], metrics, strict=True):
        assert f"{run}, test {float(format(lines[-1]['test_error'], '.4g')):g}" in said.text_content()
    page.mouse.move(0, 0)
    assert said.text_content() == ""
    chart.focus()
    page.keyboard.press("ArrowLeft")
    assert said.text_content().startswith("epoch 2: ")


@pytest.mark.slow
def test_figures_are_there_and_grow(page, contents):
    shown = page.locator("img")
    assert shown.count() == sum(len(section.pictures) for section in contents.sections) + len(contents.pictures)
    assert all(shown.evaluate_all("images => images.map(image => image.complete && image.naturalWidth > 100)"))
    first = page.locator(".picture").nth(1)
    narrow = first.bounding_box()["width"]
    first.click()
    assert first.bounding_box()["width"] > 1.5 * narrow
    assert first.get_attribute("aria-expanded") == "true"
    first.press("Enter")
    assert first.bounding_box()["width"] == narrow


def colour(page, selector: str, name: str) -> tuple[int, ...]:
    text = page.locator(selector).first.evaluate(f"element => getComputedStyle(element).{name}")
    return tuple(int(part) for part in text.removeprefix("rgb(").removesuffix(")").split(","))


@pytest.mark.slow
@pytest.mark.parametrize("system_is_dark", [False, True])
def test_light_and_dark(browser_page, report_file, system_is_dark):
    page = browser_page(DESKTOP, dark=system_is_dark)
    page.goto(report_file.as_uri())

    def looks_dark() -> bool:
        paper, ink = colour(page, "body", "backgroundColor"), colour(page, "body", "color")
        curve = colour(page, ".curve", "stroke")
        assert abs(sum(paper) - sum(ink)) > 400, "text can be read"
        assert abs(sum(colour(page, ".chart", "backgroundColor")) - sum(curve)) > 200, "curves can be seen"
        return sum(paper) < sum(ink)

    assert looks_dark() == system_is_dark
    page.locator("#theme").click()
    assert looks_dark() != system_is_dark
    page.reload()
    assert looks_dark() != system_is_dark, "the choice is kept"
    page.locator("#theme").press("Enter")
    assert looks_dark() == system_is_dark


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("device", "size"), [("phone", PHONE), ("desktop", DESKTOP)])
def test_fits_the_screen(browser_page, report_file, device, size, dark):
    page = browser_page(size, dark=dark)
    page.goto(report_file.as_uri())
    assert not overflows_sideways(page)
    layers = page.locator(".scroll.tall").first
    assert layers.evaluate("box => box.scrollWidth <= box.clientWidth"), "no column of the layers is cut off"
    for picture in page.locator(".picture").all():
        assert picture.evaluate("box => box.scrollWidth <= box.clientWidth"), "nor a figure"
    for number, place in enumerate(("#results", "#run-2", ".layers")):
        page.locator(place).first.scroll_into_view_if_needed()
        page.locator(place).first.evaluate("element => element.scrollIntoView()")
        save_screenshot(page, f"report-{device}-{'dark' if dark else 'light'}-{number}")


def test_prints(browser_page, report_file):
    page = browser_page((688, 1000), dark=True)  # a sheet of A4 less its margins
    page.goto(report_file.as_uri())
    page.emulate_media(media="print")
    assert not overflows_sideways(page)
    assert sum(colour(page, "body", "color")) < 200, "dark ink, whatever the screen has"
    assert not page.locator("#theme").is_visible()
    box = page.locator(".scroll.tall").first
    assert box.evaluate("box => box.scrollHeight <= box.clientHeight"), "every row is on paper"


@pytest.mark.slow
def test_hostile_run_folder(browser_page, bare_folder, changed_folder, tmp_path):
    run = changed_folder(
        TrainedRun(bare_folder).recipe.changed(name=HOSTILE),
        name="<b>folder",
        environment={"<i>": "<u>", "hardware": HOSTILE},
        note="</pre><script>hacked=1",
    )
    file = tmp_path / "report.html"
    write_page(gather([run, run], figures=("training", "ablation")), file)
    page = browser_page(DESKTOP)
    page.goto(file.as_uri())
    assert page.evaluate("typeof hacked") == "undefined"
    title = f"{HOSTILE}, seed 1 (<b>folder)"
    assert texts(page, "h2 span")[0] == title
    assert json.loads(page.locator("#chart-data").text_content())["runs"] == [title] * 2
    assert page.locator("b, u, main i:not(.swatch)").count() == 0
    assert page.locator("img").count() == 2
    assert "</pre><script>" in page.locator("pre").first.text_content()


def test_needs_nothing_else(report_file):
    """Small enough to send, and no script or address from elsewhere may ever run."""
    page = report_file.read_text()
    assert len(page) < 8_000_000
    assert "default-src 'none'" in page
    assert all(address not in page for address in ('src="http', 'href="http', "url(http", "@import"))
