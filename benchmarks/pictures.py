r"""Make the pictures of README and docs: what runs of `make demo` and `make real` learned, and pages in a browser.

    make demo
    .venv/bin/python benchmarks/pictures.py plot outputs/arithmetic_cpu               # demo.png
    make real
    .venv/bin/python benchmarks/pictures.py real outputs/smollm2_135m_cpu             # real.png
    .venv/bin/trl-grpo-plus run word_problems_cpu
    .venv/bin/python benchmarks/pictures.py page outputs/word_problems_cpu            # page, follow, prompts, metrics
    make race RACE_ARGS="--max_steps 125 --log_completions true"
    .venv/bin/python benchmarks/pictures.py compare \
        outputs/arithmetic_cpu_race/{trl_grpo_plus,stock_trl}                         # compare.png

`page` and `compare` need Chromium on the PATH.
"""

import argparse
import io
import shutil
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from PIL import Image
from playwright.sync_api import sync_playwright

from trl_grpo_plus import traces
from trl_grpo_plus.view import write_comparison, write_page


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Kinds:
    """Kinds of problems: their column, a label and a colour for each, and how many steps make one point.

    With `bars` only the held-out problems are shown, for runs with too few steps for curves.
    """

    column: str
    labels: dict[str, tuple[str, str]]
    bin: int
    bars: bool = False


DEMO = Kinds(
    "difficulty",
    {
        "edge": ("sums with a carry", "#0072b2"),
        "easy": ("sums without a carry", "#2a9d76"),
        "hard": ("products (none in the warm-up)", "#c4570a"),
    },
    bin=5,
)
REAL = Kinds(
    "kind",
    {
        "sums_1": ("4 + 7", "#2a9d76"),
        "sums_2": ("27 + 35", "#0072b2"),
        "sums_3": ("418 + 267", "#7a5195"),
        "products_1x1": ("6 * 7", "#c4570a"),
        "products_1x2": ("6 * 74", "#b8860b"),
    },
    bin=4,  # of the four steps on a batch, one samples
    bars=True,
)
VERDICTS = {"alive": "#0072b2", "all_good": "#2a9d76", "all_bad": "#c4570a"}  # the colours of the page
TOLD = {"alive": "alive", "all_good": "all good: equal rewards", "all_bad": "all bad: equal rewards"}
Groups = list[list[dict[str, Any]]]


def main() -> None:
    parser = argparse.ArgumentParser(description="The pictures of README and docs.")
    parser.add_argument("what", choices=("plot", "real", "page", "compare"))
    parser.add_argument("runs", nargs="+", help="output_dir of the run; for compare, of two runs")
    parser.add_argument("--into", type=Path, default=Path("docs/images"), help="folder of the pictures")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    if options.what == "plot":
        plot(list(traces.groups(options.runs[0])), DEMO, options.into / "demo.png")
    elif options.what == "real":
        plot(list(traces.groups(options.runs[0])), REAL, options.into / "real.png")
    elif options.what == "page":
        page = write_page(options.runs[0], Path(options.runs[0]) / "report.html").path
        for name, (place, act) in VIEWS.items():
            screenshot(page, place, act, options.into / f"{name}.png")
    else:
        page = write_comparison(options.runs, Path(options.runs[0]).parent / "compare.html").path
        screenshot(page, "", lambda page: None, options.into / "compare.png")


def plot(groups: Groups, kinds: Kinds, target: Path) -> None:
    """Draw right answers by kind of problem, and verdicts, over the steps."""
    train = [group for group in groups if group[0]["split"] == "train"]
    figure = Figure(figsize=(8, 3), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    (bars if kinds.bars else curves)(left, groups, kinds)
    stacks = {v: over_steps(train, kinds.bin, lambda group, v=v: group[0]["verdict"] == v) for v in VERDICTS}
    steps = stacks["alive"][0]
    right.stackplot(steps, [shares for _, shares in stacks.values()], colors=list(VERDICTS.values()), alpha=0.85)
    below, half = 0.0, len(steps) // 2
    some = slice(half, None) if kinds.bars else slice(half)
    inset = 0.02 * (steps[-1] - steps[0])
    at, align = (steps[-1] - inset, "right") if kinds.bars else (steps[0] + inset, "left")
    for verdict, (_, shares) in stacks.items():
        middle = below + fmean(shares[some]) / 2
        right.text(at, middle, TOLD[verdict], color="white", ha=align, va="center", fontsize=9)
        below += fmean(shares[some])
    right.set(title="Groups sampled, before filtering", xlabel="step", ylim=(0, 1), xlim=(steps[0], steps[-1]))
    for axes in (left, right):
        (axes.xaxis if kinds.bars and axes is left else axes.yaxis).set_major_formatter(PercentFormatter(1))
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target)


def curves(axes: Any, groups: Groups, kinds: Kinds) -> None:
    """Draw the share of right attempts during training, and on held-out problems before and after."""
    for kind, (label, colour) in kinds.labels.items():
        of_kind = [
            group for group in groups if group[0]["split"] == "train" and group[0]["reference"][kinds.column] == kind
        ]
        steps, shares = over_steps(of_kind, kinds.bin, lambda group: fmean(row["reward"] for row in group))
        axes.plot(steps, shares, color=colour, label=label)
        held_out = [group for group in groups if group[0]["split"] == f"eval_{kind}"]
        ends = {step: rewards_at(held_out, step) for step in {group[0]["step"] for group in held_out}}
        axes.plot(list(ends), list(ends.values()), "o", color=colour, markerfacecolor="white", clip_on=False)
    axes.plot([], [], "o", color="#59636e", markerfacecolor="white", label="held out, before and after")
    axes.set(title="Share of right attempts", xlabel="step", ylim=(-0.02, 1.02))
    axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.05))


def bars(axes: Any, groups: Groups, kinds: Kinds) -> None:
    """Draw a bar for the share of right attempts on held-out problems before training, and one for after."""
    for place, (kind, (_, colour)) in enumerate(kinds.labels.items()):
        held_out = [group for group in groups if group[0]["split"] == f"eval_{kind}"]
        ends = sorted({group[0]["step"] for group in held_out})
        before, after = (rewards_at(held_out, step) for step in (ends[0], ends[-1]))
        axes.barh(place - 0.2, before, 0.36, color=colour, alpha=0.35)
        axes.barh(place + 0.2, after, 0.36, color=colour)
        for at, share in ((place - 0.2, before), (place + 0.2, after)):
            axes.text(share + 0.01, at, f"{share:.0%}", va="center", fontsize=8)
    labels = [label for label, _ in kinds.labels.values()]
    axes.set(title="Held-out problems, before and after", xlim=(0, 1.08))
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()


def over_steps(groups: Groups, size: int, value: Any) -> tuple[list[float], list[float]]:
    """Return the middle of each bin of `size` steps, and the mean of `value(group)` in it."""
    bins = defaultdict(list)
    for group in groups:
        bins[(group[0]["step"] - 1) // size].append(float(value(group)))
    return [(at + 0.5) * size for at in sorted(bins)], [fmean(bins[at]) for at in sorted(bins)]


def rewards_at(groups: Groups, step: int) -> float:
    return fmean(row["reward"] for group in groups for row in group if row["step"] == step)


def pinned(page: Any) -> None:
    """Pin the best and the worst attempt."""
    for at in ("first", "last"):
        getattr(page.get_by_role("button", name="Pin"), at).click()


def every_metric(page: Any) -> None:
    page.locator("#picker > summary").click()
    for name in ("grad_norm", "clip_ratio/region_mean", "frac_reward_zero_std", "tokens/trained"):
        if (box := page.locator(f"#metric-names input[data-metric='{name}']")).count():
            box.check()
    page.locator("#metric-names").evaluate("node => { node.scrollTop = 0; }")


# name of a picture -> the address within the page, and what to do there
VIEWS: dict[str, tuple[str, Any]] = {
    "page": ("", pinned),
    "follow": ("", lambda page: page.keyboard.press("f")),
    "prompts": ("", lambda page: page.keyboard.press("o")),
    "metrics": ("", every_metric),
}


def screenshot(page_file: Path, place: str, act: Any, target: Path) -> None:
    """Save a screenshot of a page after `act`."""
    with sync_playwright() as playwright:
        chromium = next(filter(None, map(shutil.which, BROWSERS)))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        size: Any = {"width": 1180, "height": 720}
        page = browser.new_page(viewport=size, device_scale_factor=1.5, color_scheme="light")
        page.goto(f"{page_file.resolve().as_uri()}{place}")
        page.wait_for_selector(".attempt, .one, .empty")
        act(page)
        page.wait_for_timeout(700)  # ms, until everything is drawn
        picture = Image.open(io.BytesIO(page.screenshot()))
        # The default method may replace a rare colour by that of its neighbours: orange becomes red. This method alone
        # tints the light backgrounds; `kmeans` removes the tint.
        picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=1).save(target, optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
