"""Vision models: when rows are dropped or moved, each row keeps its pictures and their pixels."""

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
import tiny_models
import trl
import vision_models
import warm_processes
from datasets import Dataset
from packaging.version import Version
from PIL import Image, features
from slow_cases import covering
from vision_models import questions

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from trl_grpo_plus.config.compatibility import check_model
from trl_grpo_plus.rollouts.groups import Attempt
from trl_grpo_plus.traces import images
from trl_grpo_plus.traces import reader as traces
from trl_grpo_plus.trainer.image_rows import check_images, with_images_in_prompts
from trl_grpo_plus.utils.text import as_text
from trl_grpo_plus.utils.validation import ConfigError


# TRL 1.10 splits the pixels of a batch into micro-batches at wrong places.
pytestmark = pytest.mark.skipif(Version(trl.__version__) < Version("1.11"), reason="TRL 1.11 cuts pixels right")
WORKER = Path(__file__).parents[1] / "helpers" / "distributed_worker.py"
FAMILIES = list(vision_models.FAMILIES)


@pytest.mark.parametrize(
    ("family", "mode", "mixed"),
    covering(
        lambda family, mode, mixed: (FAMILIES.index(family) + (mode == "drop") + mixed) % 2 > 0,  # covers each pair
        *(FAMILIES, ["drop", "resample"], [False, True]),
    ),
)
def test_rows_keep_their_pictures(tmp_path, family, mode, mixed):
    """Completions are really sampled, and there are micro-batches. With `mixed`, some rows have no picture.

    Stock TRL cannot train on such a mix.
    """
    seen = (lambda n: n % 3 > 0) if mixed else lambda n: True
    options = {"zero_variance_groups": mode, "max_resample_rounds": 4, "gradient_accumulation_steps": 2}
    options |= {"beta": 0.1, "max_steps": 2, "trace_every": 1, "num_generations": 2, "shuffle_dataset": False}
    trained = vision_models.trained(tmp_path, family, vision_models.some_dead, data=questions(30, seen), **options)
    rows = vision_models.kept(trained, family)
    assert len(rows) >= 4
    assert all(number % 4 < 2 for number, _ in rows)
    assert vision_models.wrong(rows, family, seen) == []
    assert {seen(number) for number, _ in rows} == ({False, True} if mixed else {True})


@pytest.mark.parametrize(
    ("family", "mode", "without", "size"),
    [
        (FAMILIES[0], "drop", [], 16),
        (FAMILIES[1], "resample", None, 16),
        (FAMILIES[0], "keep", [], 16),
        (FAMILIES[1], "keep", None, 4),  # one prompt a batch: no row of a batch may have a picture
        (FAMILIES[0], "drop", None, 4),
    ],
)
def test_an_evaluation_may_mix_rows_with_and_without_pictures(tmp_path, family, mode, without, size):
    """Stock TRL ends there, and so in training, which works in all modes here."""
    rows = questions(12, lambda n: n % 2 == 0)
    rows = Dataset.from_dict({**rows.to_dict(), "images": [images or without for images in rows["images"]]})
    options = {"zero_variance_groups": mode, "max_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    options |= {"per_device_eval_batch_size": size, "extra": {"eval_dataset": rows.select(range(4))}}
    trained = vision_models.trained(tmp_path, family, vision_models.some_dead, data=rows, **options)
    assert tiny_models.logged(trained, "eval_reward")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"beta": 0.1, "kl_placement": "reward", "kl_estimator": "k1"}])
def test_dropping_is_training_on_the_live_pictures_alone(tmp_path, family, options):
    assert vision_models.distance(tmp_path, family, rows=16, alone=8, **options) < 5e-6


@pytest.mark.parametrize("mode", ["drop", "resample"])
def test_a_batch_of_which_no_picture_is_left(tmp_path, mode):
    """The batch first had rows with pictures, and TRL would give their pixels to the rows without."""
    options = {"zero_variance_groups": mode, "data": questions(8, lambda n: n % 4 > 1), "max_resample_rounds": 1}
    trained = vision_models.trained(
        tmp_path, "qwen2.5-vl", vision_models.some_dead, **options, max_steps=1, shuffle_dataset=False
    )
    rows = vision_models.kept(trained, "qwen2.5-vl")
    assert {number for number, _ in rows} >= {0, 1}
    assert all(not len(pixels) for _, pixels in rows)


@pytest.mark.parametrize("mode", ["drop", "resample"])
def test_text_alone(tmp_path, mode):
    """Without images, rewards are given the prompts as the dataset has them."""

    def reward(prompts, number, **columns):
        assert [prompt[0]["content"] for prompt in prompts] == [f"{n:02d}=" for n in number]
        return vision_models.some_dead(number=number, **columns)

    data = questions(30).remove_columns("images")
    trained = vision_models.trained(tmp_path, "gemma3", reward, data=data, zero_variance_groups=mode)
    assert all(not len(pixels) for _, pixels in vision_models.kept(trained, "gemma3"))
    assert min(tiny_models.logged(trained, "groups/trained")) > 0


def test_sharded_training_needs_a_picture_in_each_row():
    """A process whose rows have none would not run the vision part, for which the other processes wait."""
    mixed = questions(8, lambda number: number % 4 > 1)
    with pytest.raises(ConfigError, match="eval_dataset: 4 of 8 rows have no image in the column 'images'"):
        check_images(None, mixed)
    with pytest.raises(ConfigError, match="train_dataset: 2 of 5 rows have no image"):
        check_images(mixed.select([0, 2, 3, 5, 6]), None)
    singles = Dataset.from_list([{"prompt": "?", "image": picture} for picture in (None, mixed[2]["images"][0])] * 4)
    with pytest.raises(ConfigError, match="train_dataset: 4 of 8 rows have no image in the column 'image'"):
        check_images(singles, None)
    uncertain = [mixed.to_iterable_dataset(), mixed.with_transform(lambda rows: rows), mixed.remove_columns("images")]
    for rows in (*uncertain, mixed.select([2, 3]), mixed.select([0, 1]), None):
        check_images(rows, None)


def test_a_sharded_trainer_refuses_such_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(GRPOPlusTrainer, "_is_sharded", True)
    mixed = questions(8, lambda number: number % 4 > 1)
    with pytest.raises(ConfigError, match="train_dataset: 4 of 8 rows have no image"):
        vision_models.trained(tmp_path, "qwen2.5-vl", vision_models.some_dead, data=mixed)


def test_a_row_is_shown_with_its_pictures_in_the_prompt_and_given_as_it_is():
    row = {"prompt": [{"role": "user", "content": "01="}], "images": ["a picture"], "number": 1}
    (seen,) = with_images_in_prompts([row])
    blocks = [{"type": "image", "image": "a picture"}, {"type": "text", "text": "01="}]
    assert seen["prompt"] == seen.get("prompt") == [{"role": "user", "content": blocks}]
    assert "images" not in seen
    assert seen.get("images") is None
    assert seen["number"] == seen.get("number") == 1
    assert {**seen} == dict(seen.items()) == row
    text = {"prompt": row["prompt"], "number": 1}
    assert with_images_in_prompts([text])[0] is text


def test_images_are_refused_where_trl_mixes_their_pixels_up():
    args = GRPOPlusConfig("unused", use_cpu=True, bf16=False, report_to="none", zero_variance_groups="drop")
    nothing = {"environments": None, "rollouts": None, "tools": None}
    with pytest.raises(
        ValueError, match=r"zero_variance_groups='drop' with images needs TRL 1\.11 or later: TRL 1\.10\.0"
    ):
        check_model(args, **nothing, images=True, trl_version="1.10.0")
    check_model(args, **nothing, images=True, trl_version="1.11.0")
    check_model(args, **nothing, images=False, trl_version="1.10.0")


def test_beliefs_and_an_advantage_function_that_reads_entropies(tmp_path):
    options = {"prompt_selection": "belief", "advantage_estimator": "zvp", "zero_variance_groups": "keep"}
    trained = vision_models.trained(tmp_path, "qwen2.5-vl", vision_models.some_dead, **options)
    assert all(len(pixels) for _, pixels in vision_models.kept(trained, "qwen2.5-vl"))
    assert trained._buffered_inputs[0]["advantages"].dim() == 2


def test_traces_tell_pictures_apart_and_hold_none(tmp_path):
    options = {
        "data": questions(4, lambda number: number != 1),
        "num_generations": 2,
        "per_device_train_batch_size": 8,
        "max_steps": 1,
        "trace_every": 1,
    }
    vision_models.trained(tmp_path, "qwen2.5-vl", vision_models.some_dead, zero_variance_groups="drop", **options)
    told = {}
    for group in traces.groups(tmp_path / "run"):
        assert "images" not in group[0]["reference"]
        assert group[0]["prompt"] == group[1]["prompt"]
        told[group[0]["reference"]["number"]] = as_text(group[0]["prompt"]).split("\n")
    assert told[1] == ["01="]
    assert [told[number][1] for number in (0, 2, 3)] == ["00=", "02=", "03="]
    digests = {told[number][0].rpartition(" ")[2] for number in (0, 2, 3)}
    assert len(digests) == 3
    assert told[3][0].startswith("<image RGB 24x16 ")
    assert not (tmp_path / "run" / "rollouts" / "thumbnails").exists()


def test_thumbnails_are_kept_once_beside_the_attempts(tmp_path, monkeypatch):
    made = []
    thumbnail = images.thumbnail
    monkeypatch.setattr(images, "thumbnail", lambda *given: made.append(given) or thumbnail(*given))
    options = {"num_generations": 2, "per_device_train_batch_size": 8, "max_steps": 3, "trace_every": 1}
    data = questions(4, lambda number: number != 1)  # three pictures, each seen three times
    options |= {"zero_variance_groups": "drop", "trace_thumbnails": 12}
    vision_models.trained(tmp_path, "qwen2.5-vl", vision_models.some_dead, data=data, **options)
    assert len(made) == 3
    folder = tmp_path / "run" / "rollouts"
    shown = {}
    for group in traces.groups(folder):
        number = group[0]["reference"]["number"]
        shown[number] = list(images.named_in(folder, [as_text(group[0]["prompt"])]))
    assert {number: len(found) for number, found in shown.items()} == {0: 1, 1: 0, 2: 1, 3: 1}
    for number in (0, 2, 3):
        ((_, data),) = shown[number]
        with Image.open(io.BytesIO(data)) as small:
            assert small.size == ((12, 8) if number == 3 else (12, 12))
            colour = small.convert("RGB").getpixel((6, 4))
        assert all(
            abs(a - b) < 12 for a, b in zip(colour, vision_models.picture(number).getpixel((0, 0)), strict=True)
        )


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "L", "1", "CMYK", "I;16", "F"])
def test_a_thumbnail_of_any_mode(mode):
    picture = Image.new(mode, (40, 10))
    with Image.open(io.BytesIO(images.thumbnail(picture, 20))) as small:
        assert small.size == (20, 5)
    assert picture.size == (40, 10)


def test_a_thumbnail_needs_nothing_that_old_releases_of_pillow_lack(monkeypatch):
    # Pillow 10.1 added it, and transformers allows 10.0.1. Pillow's own writer does not read it for RGB.
    monkeypatch.delattr(Image.Image, "has_transparency_data", raising=False)
    with Image.open(io.BytesIO(images.thumbnail(Image.new("RGB", (40, 30)), 20))) as small:
        assert (small.format, small.size) == ("WEBP", (20, 15))


def test_a_picture_that_has_no_thumbnail_costs_no_other_and_is_told_once(caplog):
    odd, known = Image.new("La", (40, 10)), Image.new("P", (40, 10))
    attempt = Attempt(
        inputs={},
        prompt=[{"content": [{"image": odd}, {"image": known}]}],
        prompt_ids=[1],
        completion_ids=[1],
        completion="",
    )
    made = images.Thumbnails(20)
    assert list(made.of([attempt, attempt], alike=False)) == [images.image_name(known)]
    assert made.of([attempt], alike=True) == {}
    assert caplog.text.count(f"No thumbnail of {images.image_name(odd)} is kept") == 1


def test_thumbnails_that_cannot_be_kept_cost_no_attempt(tmp_path, caplog):
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    (tmp_path / "run" / "rollouts" / "thumbnails").write_text("a file")
    options = {"data": questions(4), "num_generations": 2, "per_device_train_batch_size": 8, "max_steps": 2}
    options |= {"zero_variance_groups": "drop", "trace_every": 1, "trace_thumbnails": 12}
    vision_models.trained(tmp_path, "gemma3", vision_models.some_dead, **options)
    assert caplog.text.count("Thumbnails could not be kept; training goes on") == 1
    assert len(list(traces.groups(tmp_path / "run"))) == 8


def test_a_pillow_without_webp_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "check", lambda name: name != "webp")
    with pytest.raises(ValueError, match="trace_thumbnails needs a Pillow that writes WebP"):
        vision_models.trained(
            tmp_path, "gemma3", vision_models.some_dead, zero_variance_groups="drop", trace_thumbnails=12
        )


@pytest.mark.full
def test_pictures_on_two_processes(tmp_path):
    command = [sys.executable, WORKER, tmp_path, "pictures"]
    done = warm_processes.run_ranks(command, env={**os.environ, "ACCELERATE_USE_CPU": "true"}, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    first, second = (json.loads((tmp_path / f"pictures-{rank}.json").read_text()) for rank in range(2))
    assert max(first["distance"], second["distance"]) < 5e-6
    assert first["resampled"] == second["resampled"]
    assert first["wrong"] == second["wrong"] == []
    assert min(first["rows"], second["rows"]) > 0
    run = tmp_path / "pictures" / "run"
    small = {path.stem for path in (run / "rollouts" / "thumbnails").iterdir()}
    groups = traces.groups(run)
    told = {name for group in groups for name in re.findall(r"<image (.+)>", as_text(group[0]["prompt"]))}
    assert small == {name.replace(" ", "-") for name in told}  # also for pictures of the second rank
    assert small
    assert first["seen"] == [False] * 4
    assert second["seen"] == [True] * 4
