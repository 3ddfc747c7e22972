"""The reward `instruction_checks`: each kind of constraint held and missed, bad constraints, hostile texts."""

import doctest
import json
import time

import pytest
from datasets import Dataset

from trl_grpo_plus.registry import RewardError, get_reward
from trl_grpo_plus.rewards.instruction_checks import KINDS, instruction_checks


POEM = "Roses are red.\nViolets are blue.\n\nSugar is sweet!"

# text, constraint, whether it holds
CASES = [
    # words
    ("one two three", {"kind": "words", "exactly": 3}, True),
    ("one two three", {"kind": "words", "exactly": 4}, False),
    ("one two three", {"kind": "words", "min": 3}, True),
    ("one two three", {"kind": "words", "min": 4}, False),
    ("one two three", {"kind": "words", "max": 3}, True),
    ("one two three", {"kind": "words", "max": 2}, False),
    ("one two three", {"kind": "words", "min": 2, "max": 4}, True),
    ("one two three", {"kind": "words", "min": 1, "max": 2}, False),
    ("don't", {"kind": "words", "exactly": 1}, True),
    ("don’t", {"kind": "words", "exactly": 1}, True),
    ("well-known", {"kind": "words", "exactly": 1}, True),
    ("well - known", {"kind": "words", "exactly": 2}, True),
    ("yes—no", {"kind": "words", "exactly": 2}, True),
    ("3.14 and 1,000", {"kind": "words", "exactly": 3}, True),
    ("a.b", {"kind": "words", "exactly": 2}, True),
    ("a.2", {"kind": "words", "exactly": 2}, True),
    ("* - one ... !", {"kind": "words", "exactly": 1}, True),
    ("snake_case", {"kind": "words", "exactly": 2}, True),
    ("我喜欢茶", {"kind": "words", "exactly": 4}, True),
    ("我喜欢 tea。", {"kind": "words", "exactly": 4}, True),
    ("東京タワー", {"kind": "words", "min": 4}, True),
    ("हिन्दी भाषा", {"kind": "words", "exactly": 2}, True),
    ("cafe\u0301 noir", {"kind": "words", "exactly": 2}, True),
    ("나는 차를 좋아해", {"kind": "words", "exactly": 3}, True),
    ("a a b A", {"kind": "unique_words", "exactly": 2}, True),
    ("a a b A", {"kind": "unique_words", "min": 3}, False),
    ("NASA and ESA", {"kind": "capital_words", "exactly": 2}, True),
    ("I am A man", {"kind": "capital_words", "min": 1}, False),
    ("12 34 ok", {"kind": "capital_words", "min": 1}, False),
    ("我喜 欢", {"kind": "characters", "exactly": 3}, True),
    ("abc", {"kind": "characters", "max": 2}, False),
    # sentences
    (POEM, {"kind": "sentences", "exactly": 3}, True),
    (POEM, {"kind": "sentences", "max": 2}, False),
    ("One", {"kind": "sentences", "exactly": 1}, True),
    ("One... two?! Three", {"kind": "sentences", "exactly": 3}, True),
    ("Pi is 3.14 or so.", {"kind": "sentences", "exactly": 1}, True),
    ("Dr. Smith met J. Doe, e.g. here.", {"kind": "sentences", "exactly": 1}, True),
    ('He said "Go." She went.', {"kind": "sentences", "exactly": 2}, True),
    ("1. Tea.\n2. Cake.", {"kind": "sentences", "exactly": 2}, True),
    ("See trl.rewards for it.", {"kind": "sentences", "exactly": 1}, True),
    ("我喜欢茶。你呢？好！", {"kind": "sentences", "exactly": 3}, True),
    ("Go! ! ! ! !", {"kind": "sentences", "min": 2}, False),
    ("Title\n\nText here", {"kind": "sentences", "exactly": 2}, True),
    # paragraphs, lines, headings
    (POEM, {"kind": "paragraphs", "exactly": 2}, True),
    ("a\nb", {"kind": "paragraphs", "exactly": 1}, True),
    ("a\n \t\nb", {"kind": "paragraphs", "exactly": 2}, True),
    ("a\r\n\r\nb", {"kind": "paragraphs", "exactly": 2}, True),
    ("a\n\n***\n\nb", {"kind": "paragraphs", "exactly": 2}, True),
    ("a" + "\n" * 9 + "b", {"kind": "paragraphs", "min": 3}, False),
    (POEM, {"kind": "lines", "exactly": 3}, True),
    (POEM, {"kind": "lines", "exactly": 4}, False),
    ("# A\ntext\n## B", {"kind": "headings", "exactly": 2}, True),
    ("#A\n####### B\n#\nb", {"kind": "headings", "min": 1}, False),
    # lists
    ("- a\n* b\n  + c\n• d", {"kind": "bullets", "exactly": 4}, True),
    ("-a\n**b**\n---\n- \nx", {"kind": "bullets", "min": 1}, False),
    ("- a\n- b\n- c", {"kind": "bullets", "exactly": 2}, False),
    ("1. a\n2. b\n3) c", {"kind": "numbered_items", "exactly": 3}, True),
    ("1. a\n1. b\n1. c", {"kind": "numbered_items", "min": 2}, False),
    ("3. a\n4. b", {"kind": "numbered_items", "min": 1}, False),
    ("1. a\n\nmore\n2. b", {"kind": "numbered_items", "exactly": 2}, True),
    ("1.5 litres\n2.5 too", {"kind": "numbered_items", "min": 1}, False),
    # marks
    ("Dear [name], at [street name].", {"kind": "placeholders", "exactly": 2}, True),
    ("[] [ ] [name", {"kind": "placeholders", "min": 1}, False),
    ("[docs](http://x) a[i]", {"kind": "placeholders", "exactly": 1}, True),
    ("[a\nb]", {"kind": "placeholders", "min": 1}, False),
    ("Go on [...] and [-]", {"kind": "placeholders", "min": 1}, False),
    ("[[name]]", {"kind": "placeholders", "exactly": 1}, True),
    ("*one* and **two**", {"kind": "highlights", "exactly": 2}, True),
    ("* item\n* item", {"kind": "highlights", "min": 1}, False),
    ("2 * 3 * 4", {"kind": "highlights", "min": 1}, False),
    ("** ** **** * *a", {"kind": "highlights", "min": 1}, False),
    ("*one\ntwo*", {"kind": "highlights", "min": 1}, False),
    ("**one**two**three**", {"kind": "highlights", "exactly": 2}, True),
    ("well *...* **!**", {"kind": "highlights", "min": 1}, False),
    ("<<Poem>> text", {"kind": "titles", "exactly": 1}, True),
    ("<Poem> <<>> << >> x", {"kind": "titles", "min": 1}, False),
    # keywords
    ("The cat, a CAT and cats", {"kind": "keyword", "keyword": "cat", "exactly": 2}, True),
    ("concatenate", {"kind": "keyword", "keyword": "cat", "min": 1}, False),
    ("cat_ and cat's", {"kind": "keyword", "keyword": "cat", "exactly": 2}, True),
    ("machine\n  Learning", {"kind": "keyword", "keyword": "machine learning", "exactly": 1}, True),
    ("C++ and C++", {"kind": "keyword", "keyword": "C++", "exactly": 2}, True),
    ("a.b axb", {"kind": "keyword", "keyword": "a.b", "exactly": 1}, True),
    ("我喜欢茶，你喜欢茶", {"kind": "keyword", "keyword": "喜欢", "exactly": 2}, True),
    ("使用AI技术", {"kind": "keyword", "keyword": "AI", "exactly": 1}, True),
    ("使用AIX技术", {"kind": "keyword", "keyword": "AI", "min": 1}, False),
    ("cafe\u0301", {"kind": "keyword", "keyword": "café", "exactly": 1}, True),
    ("STRASSE", {"kind": "keyword", "keyword": "straße", "exactly": 1}, True),
    ("banana", {"kind": "letter", "letter": "a", "exactly": 3}, True),
    ("Banana", {"kind": "letter", "letter": "b", "exactly": 1}, True),
    ("banana", {"kind": "letter", "letter": "n", "min": 3}, False),
    ("tea *** cake", {"kind": "parts", "separator": "***", "exactly": 2}, True),
    ("tea *** tea", {"kind": "parts", "separator": "***", "exactly": 2}, False),
    ("tea *** ", {"kind": "parts", "separator": "***", "exactly": 2}, False),
    ("I like tea and Cake", {"kind": "required_words", "words": ["tea", "cake"]}, True),
    ("I like tea", {"kind": "required_words", "words": ["tea", "cake"]}, False),
    ("I like teapots", {"kind": "required_words", "words": ["tea"]}, False),
    ("I like water", {"kind": "forbidden_words", "words": ["tea", "cake"]}, True),
    ("I like Tea", {"kind": "forbidden_words", "words": ["tea", "cake"]}, False),
    ("I like ｔｅａ", {"kind": "forbidden_words", "words": ["tea"]}, False),
    ("I like t\u200bea", {"kind": "forbidden_words", "words": ["tea"]}, False),
    ("I like t\u00adea", {"kind": "forbidden_words", "words": ["tea"]}, False),
    ("I like green\u00a0tea", {"kind": "forbidden_words", "words": ["green tea"]}, False),
    ("I like teapots", {"kind": "forbidden_words", "words": ["tea"]}, True),
    # case
    ("ALL LOUD, 12!", {"kind": "case", "case": "upper"}, True),
    ("ALL LOUd", {"kind": "case", "case": "upper"}, False),
    ("12 + 3", {"kind": "case", "case": "upper"}, False),
    ("我喜欢茶", {"kind": "case", "case": "upper"}, False),
    ("STRAßE", {"kind": "case", "case": "upper"}, False),
    ("all quiet, 12!", {"kind": "case", "case": "lower"}, True),
    ("all Quiet", {"kind": "case", "case": "lower"}, False),
    ("ПРИВЕТ", {"kind": "case", "case": "lower"}, False),
    ("привет", {"kind": "case", "case": "lower"}, True),
    ("The Old Man Don't Care", {"kind": "case", "case": "title"}, True),
    ("The old Man", {"kind": "case", "case": "title"}, False),
    ("12 Angry Men", {"kind": "case", "case": "title"}, True),
    # ends
    ("Dear Anna, hello", {"kind": "starts_with", "phrase": "Dear Anna"}, True),
    ("dear  anna, hello", {"kind": "starts_with", "phrase": "Dear Anna"}, True),
    ("Hello, dear Anna", {"kind": "starts_with", "phrase": "Dear Anna"}, False),
    ("Dear Annabel", {"kind": "starts_with", "phrase": "Dear Anna"}, False),
    ('"Dear Anna"', {"kind": "starts_with", "phrase": "Dear Anna"}, True),
    ("Text. Any questions?", {"kind": "ends_with", "phrase": "Any questions?"}, True),
    ("Text. any\nquestions?\n", {"kind": "ends_with", "phrase": "Any questions?"}, True),
    ("Text. Any questions? Bye", {"kind": "ends_with", "phrase": "Any questions?"}, False),
    ("Many questions?", {"kind": "ends_with", "phrase": "any questions?"}, False),
    ('"Any questions?"', {"kind": "ends_with", "phrase": "Any questions?"}, True),
    ("Any questions", {"kind": "ends_with", "phrase": "Any questions?"}, False),
    ("茶很好。谢谢", {"kind": "ends_with", "phrase": "谢谢"}, True),
    ("a\n\nHowever, b", {"kind": "paragraph_starts_with", "paragraph": 2, "phrase": "however"}, True),
    ("However\n\nb", {"kind": "paragraph_starts_with", "paragraph": 2, "phrase": "however"}, False),
    ("a", {"kind": "paragraph_starts_with", "paragraph": 2, "phrase": "a"}, False),
    ('"All of it."', {"kind": "quoted"}, True),
    ("“All of it.”", {"kind": "quoted"}, True),
    ("„Alles“", {"kind": "quoted"}, True),
    ("「全部」", {"kind": "quoted"}, True),
    ('"one" and "two"', {"kind": "quoted"}, False),
    ('"All of it', {"kind": "quoted"}, False),
    ("'single'", {"kind": "quoted"}, False),
    ('Here: "all"', {"kind": "quoted"}, False),
    ("No commas here.", {"kind": "no_commas"}, True),
    ("One, two", {"kind": "no_commas"}, False),
    ("一，二", {"kind": "no_commas"}, False),
    ("一、二", {"kind": "no_commas"}, False),
    ("واحد، اثنان", {"kind": "no_commas"}, False),
    ("1,000", {"kind": "no_commas"}, False),
    ("Text\nP.S. More", {"kind": "postscript"}, True),
    ("Text\n\n  p.s. more", {"kind": "postscript"}, True),
    ("Text\nP.P.S. more", {"kind": "postscript", "marker": "P.P.S."}, True),
    ("P.S. More", {"kind": "postscript"}, False),
    ("Text\nP.S.", {"kind": "postscript"}, False),
    ("---\nP.S. More", {"kind": "postscript"}, False),
    ("Text P.S. more", {"kind": "postscript"}, False),
    ("My answer is yes.", {"kind": "one_of", "options": ["My answer is yes.", "My answer is no."]}, True),
    ("my answer is NO", {"kind": "one_of", "options": ["My answer is yes.", "My answer is no."]}, True),
    ("yes", {"kind": "one_of", "options": ["My answer is yes.", "My answer is no."]}, False),
    ("My answer is yes. My answer is no.", {"kind": "one_of", "options": ["My answer is yes.", "My answer is no."]},
     False),
    # JSON
    ('{"a": [1, 2]}', {"kind": "json"}, True),
    ('```json\n{"a": 1}\n```', {"kind": "json"}, True),
    ('["a"]', {"kind": "json"}, True),
    ('Here: {"a": 1}', {"kind": "json"}, False),
    ('{"a": 1} done', {"kind": "json"}, False),
    ('{"a": 1', {"kind": "json"}, False),
    ("{'a': 1}", {"kind": "json"}, False),
    ('{"a": NaN}', {"kind": "json"}, False),
    ('{"a": -Infinity}', {"kind": "json"}, False),
    ('{"a": 1, "a": 2}', {"kind": "json"}, False),
    ('"text"', {"kind": "json"}, False),
    ("12", {"kind": "json"}, False),
    ('```json\n{"a": 1}\n```\nThere you are.', {"kind": "json"}, False),
    ('{"a": 1e999}', {"kind": "json"}, False),
    ('~~~json\n{"a": 1}\n~~~', {"kind": "json"}, True),
    ('```json\n{"a": 1}```', {"kind": "json"}, True),
    ('````\n{"a": 1}\n````', {"kind": "json"}, True),
    ('```python\n{"a": 1}\n```', {"kind": "json"}, False),
    ('```json\n{"a": 1}\n```\nmore ```', {"kind": "json"}, False),
    ('```json\n{"a": 1}\n```\n```json\n{"a": 1}\n```', {"kind": "json"}, False),
    ('```json\n{"a": 1}', {"kind": "json"}, False),
    # marks around
    ("Text\n**P.S.** bye", {"kind": "postscript"}, True),
    ("Text\n*P.S. bye*", {"kind": "postscript"}, True),
    ("Text\n__P.S.__ bye", {"kind": "postscript"}, True),
    ("Text\n**P.S.**", {"kind": "postscript"}, False),
    ("Text. **Any questions?**", {"kind": "ends_with", "phrase": "Any questions?"}, True),
    ("Text. __Any questions?__", {"kind": "ends_with", "phrase": "Any questions?"}, True),
    ("**Dear Anna** hello", {"kind": "starts_with", "phrase": "Dear Anna"}, True),
    ("**yes**", {"kind": "one_of", "options": ["yes", "no"]}, True),
    ("**yes** or **no**", {"kind": "one_of", "options": ["yes", "no"]}, False),
    # scripts
    ("Voilà un texte!", {"kind": "script", "script": "Latin"}, True),
    ("Это текст", {"kind": "script", "script": "Cyrillic"}, True),
    ("Это текст", {"kind": "script", "script": "Latin"}, False),
    ("这是中文 ok", {"kind": "script", "script": "Han"}, False),
    ("这是一段很长的中文文字，大约有二十多个汉字 ok。", {"kind": "script", "script": "Han"}, True),
    ("これは日本語です", {"kind": "script", "script": "Han"}, False),
    ("これは日本語です", {"kind": "script", "script": "Japanese"}, True),
    ("这是中文", {"kind": "script", "script": "Japanese"}, False),
    ("هذا نص", {"kind": "script", "script": "Arabic"}, True),
    ("यह हिन्दी है", {"kind": "script", "script": "Devanagari"}, True),
    ("12 34", {"kind": "script", "script": "Latin"}, False),
    ("In English\nи по-русски", {"kind": "ending_script", "script": "Cyrillic"}, True),
    ("In English\nи по-русски\n---", {"kind": "ending_script", "script": "Cyrillic"}, True),
    ("и по-русски\nIn English\n---", {"kind": "ending_script", "script": "Cyrillic"}, False),
]  # fmt: skip


def score(text, *constraints, **args):
    return get_reward("instruction_checks", **args)([text], constraints=[list(constraints)])[0]


@pytest.mark.parametrize(("text", "constraint", "holds"), CASES, ids=[f"{c['kind']}: {t[:30]!r}" for t, c, _ in CASES])
def test_a_constraint_holds_or_does_not(text, constraint, holds):
    assert score(text, constraint) == float(holds)


def test_thinking_that_the_prompt_opened_and_that_was_cut_off():
    for credit in ("all", "fraction"):
        args = {"think_opened": True, "credit": credit}
        assert score("I try this. Wait", {"kind": "no_commas"}, **args) == 0.0
        assert score("I try, this.</think>So be it", {"kind": "no_commas"}, **args) == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_case_that_holds_and_one_that_does_not(kind):
    assert {holds for _, constraint, holds in CASES if constraint["kind"] == kind} == {True, False}


EASY = [
    {"kind": "no_commas"},
    {"kind": "forbidden_words", "words": ["tea"]},
    {"kind": "words", "max": 5},
    {"kind": "sentences", "max": 5},
    {"kind": "bullets", "exactly": 0},
    {"kind": "letter", "letter": "a", "max": 3},
    {"kind": "case", "case": "lower"},
    {"kind": "case", "case": "title"},
    {"kind": "keyword", "keyword": "tea", "max": 1},
    {"kind": "json"},
    {"kind": "quoted"},
]
BLANK = [
    "", " \n\t", "\u200b\u2060\ufeff", "...", "!!! ???", "\x00\x00", "\ud800", "🙂🙂", "```\n```", '""', "{}", "[]",
    "\u0301\u0302", "<think>the words are in here</think>", "<think>words and no end", "words</think>", "</think>\n",
]  # fmt: skip


@pytest.mark.parametrize("text", BLANK, ids=ascii)
@pytest.mark.parametrize("credit", ["all", "fraction"])
def test_an_answer_that_says_nothing_keeps_to_nothing(text, credit):
    assert score(text, *EASY, credit=credit) == 0.0


def test_what_is_judged_comes_after_the_thinking():
    rule = {"kind": "words", "exactly": 1}
    assert score("<think>one two three, four</think>\nfive", rule, {"kind": "no_commas"}) == 1.0
    assert score("<think>five</think>\none two", rule) == 0.0


def test_messages_and_content_in_parts_count_by_their_text():
    reward = get_reward("instruction_checks")
    message = [{"role": "assistant", "content": "one two"}]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "one two"}]}]
    rule = [{"kind": "words", "exactly": 2}]
    assert reward([message, parts, []], constraints=[rule] * 3) == [1.0, 1.0, 0.0]


def test_credit_is_for_all_or_for_each():
    rules = [{"kind": "words", "max": 2}, {"kind": "no_commas"}, {"kind": "case", "case": "upper"}, {"kind": "quoted"}]
    assert score("ONE TWO", *rules) == 0.0
    assert score("ONE TWO", *rules, credit="fraction") == 0.75
    assert score("ONE TWO", *rules[:3]) == score("ONE TWO", *rules[:3], credit="fraction") == 1.0


def test_rows_as_a_dataset_gives_them():
    """Arrow fills up each dict with the keys of the others; mixed types go in as JSON; a row may have none."""
    rules = [{"kind": "words", "exactly": 2}, {"kind": "forbidden_words", "words": ["tea"]}]
    filled = Dataset.from_dict({"constraints": [rules]})["constraints"][0]
    assert None in filled[0].values()
    given = [filled, json.dumps(rules), [json.dumps(rule) for rule in rules], rules, None]
    assert get_reward("instruction_checks")(["no milk"] * 5, constraints=given) == [1.0, 1.0, 1.0, 1.0, None]
    assert get_reward("instruction_checks")(["no tea"] * 5, constraints=given) == [0.0, 0.0, 0.0, 0.0, None]


BAD = [
    ([{"kind": "word", "min": 1}], "Did you mean words"),
    ([{"kind": "words", "mn": 1}], "Did you mean min"),
    ([{"kind": "words", "minimum": 1}], "words takes no 'minimum'"),
    ([{"kind": "words"}], "needs min, max"),
    ([{"kind": "words", "min": 5, "max": 4}], "not below min"),
    ([{"kind": "words", "min": 5, "exactly": 5}], "the last alone"),
    ([{"kind": "words", "min": "5"}], "must be int"),
    ([{"kind": "words", "min": True}], "must be int"),
    ([{"kind": "words", "min": 2.5}], "must be int"),
    ([{"kind": "words", "min": -1}], "negative"),
    ([{"kind": "no_commas", "max": 1}], "no_commas takes no 'max', only its name"),
    ([{"kind": "keyword", "min": 1}], "keyword needs keyword"),
    ([{"kind": "keyword", "keyword": " ", "min": 1}], "not empty"),
    ([{"kind": "keyword", "keyword": "\u200b", "min": 1}], "not empty"),
    ([{"kind": "required_words", "words": []}], "not empty"),
    ([{"kind": "required_words", "words": ["tea", ""]}], "not empty"),
    ([{"kind": "required_words", "words": "tea"}], "must be list"),
    ([{"kind": "case", "case": "UPPER"}], "'upper', 'lower', 'title'"),
    ([{"kind": "script", "script": "French"}], "'Cyrillic'"),
    ([{"kind": "paragraph_starts_with", "paragraph": 0, "phrase": "a"}], "paragraph=0"),
    ([{"kind": "no_commas"}, {"kind": "no_comma"}], "Did you mean no_commas"),
    ([{"min": 3}], "no known kind"),
    ([{"kind": ["words"]}], "no known kind"),
    ([{"kind": None}], "no known kind"),
    (["no_commas"], "list of dicts"),
    ([], "at least one"),
    ("[]", "at least one"),
    ({"kind": "no_commas"}, "list of dicts"),
    ("no_commas", "list of dicts"),
    ('{"kind": "no_commas"}', "list of dicts"),
    ("null", "list of dicts"),
    ('"1"', "no known kind"),
    (7, "list of dicts"),
]


@pytest.mark.parametrize(("constraints", "says"), BAD)
def test_a_bad_constraint_is_refused_before_training_by_row_and_at_scoring(constraints, says):
    check = instruction_checks.definition.check_columns
    good = [{"kind": "no_commas"}]
    with pytest.raises(ValueError, match=r"1 of 3 rows.*row 1: ") as error:
        check(constraints=[good, constraints, good], credit="all")
    assert says in str(error.value)
    with pytest.raises(RewardError, match="instruction_checks"):
        get_reward("instruction_checks")(["text"], constraints=[constraints])


def test_good_constraints_pass_the_check():
    check = instruction_checks.definition.check_columns
    assert check(constraints=[[constraint] for _, constraint, _ in CASES], credit="all") is None


def test_an_unknown_credit_is_refused():
    with pytest.raises(ValueError, match="credit='some'"):
        get_reward("instruction_checks", credit="some")


# One constraint of each kind, on texts that hang careless patterns.
ONE_OF_EACH = list({constraint["kind"]: constraint for _, constraint, _ in CASES}.values())
HOSTILE = {
    "1 MB of a letter": "a" * 1_000_000,
    "many words": "tea " * 100_000,
    "300,000 newlines": "x" + "\n" * 300_000 + "y",
    "blanks within": "x" + " " * 400_000 + "y",
    "blank lines": "x" + " \n" * 100_000 + "y",
    "open brackets": "[" * 100_000 + "x",
    "an open bracket and no end": "[" + "a" * 400_000,
    "brackets": "[a" * 100_000,
    "stars": "*" * 400_000 + "x",
    "stars and letters": "*a" * 200_000,
    "stars and blanks": "*a " * 100_000,
    "angles": "<" * 400_000 + "x",
    "dots": "." * 400_000 + "x",
    "dots and blanks": ". " * 200_000 + "x",
    "quotes": '"' * 400_000 + "x",
    "an end and quotes": "a." + '"' * 400_000 + "x",
    "apostrophes": "a'" * 200_000,
    "digits": "1" * 400_000,
    "digits and dots": "1." * 200_000,
    "nested JSON": "[" * 100_000 + "1" + "]" * 100_000,
    "nested objects": '{"a":' * 100_000,
    "fences": "```json\n" * 100_000 + "x",
    "a run of marks": "a" + "\u0301\u0323" * 100_000,
    "marks in ligatures": "a" + "\u0344" * 100_000,
    "what normalising lengthens": "\ufdfa" * 100_000,
    "invisible": "a" + "\u200b" * 400_000 + "b",
    "NUL": "a\x00" * 100_000,
    "lone surrogates": "a\ud800\udfff" * 200_000,
    "Chinese": "我喜欢茶。" * 100_000,
    "think tags": "<think>" * 100_000 + "x",
    "think ends": "</think>" * 100_000 + "x",
    "numbered": "".join(f"{n}. a\n" for n in range(1, 100_000)),
    "phrases": "any " * 100_000 + "questions",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_is_answered_in_time(text):
    start = time.process_time()
    assert 0.0 <= score(text, *ONE_OF_EACH, credit="fraction") <= 1.0
    assert time.process_time() - start < 30  # all kinds together take 2 s on the worst


def test_docstring():
    [examples] = doctest.DocTestFinder(recurse=False).find(
        instruction_checks, "instruction_checks", globs={"instruction_checks": instruction_checks}
    )
    assert examples.examples
    assert doctest.DocTestRunner().run(examples).failed == 0


@pytest.mark.parametrize("example", instruction_checks.definition.examples, ids=lambda example: example.completion)
def test_registered_examples(example):
    columns = {name: [value] for name, value in example.columns.items()}
    assert get_reward("instruction_checks", **example.args)([example.completion], **columns) == [example.reward]
