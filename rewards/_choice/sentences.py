"""The sentences in which models state their answer: "The answer is B", "So, B.", "B is the best choice", "答案：B"."""

import re

from .._denials import DENIAL, DOUBT


_SO = r"(?:so|thus|therefore|hence)"
_HEAD = (
    r"(?:\[?(?:(?:final|correct|right|best|selected|chosen"
    r"|most (?:likely|probable|plausible|appropriate|suitable|accurate|reasonable)) ){0,2}"
    r"(?:answer choice|answer|option|choice|letter)\]?"
    r"(?: to (?:this|(?:the|this|your) question))?"
    r"(?: among (?:these|(?:the|these) (?:(?:given|above|provided|available) )?(?:options|choices|answers)))?"
    r"|(?:correct|right|best) (?:one|response)|correct(?=\*{0,3} ?:))"
)
_IS = r"(?: (?:is|would be|must be|should be)(?: therefore| thus| hence)? ?:?| ?[:=]| [-\u2013\u2014](?= ))"
_ANSWER_LINE = re.compile(
    rf"(\*{{1,3}})?(?:{_SO},? )?(?:(?:the|my) )?{_HEAD}(?(1)(\1)?){_IS}(?(1)(\1)?)\s*(.+)", re.IGNORECASE
)
_HEADING = re.compile(rf"(?:the )?{_HEAD}|(?:(?:最[终終]|正[确確])的?)?答案|正解|答え|정답", re.IGNORECASE)
_LEAD = re.compile(r"\b(?:the|my|final|correct|right|best) (?:answer|option|choice)(?: is)? ?:[*\s]*$", re.IGNORECASE)
# Articles must be in lower case: "Resposta: A B" names two choices.
_ELSEWHERE = re.compile(
    r"(?:"
    r"(?:(?:所以|因此|因而|故|[综綜]上(?:所述)?)[,，]? ?){0,2}(?:(?:最[终終]|正[确確])的?)?"
    r"(?:答案|选项|選項)(?: ?[是为為选選] ?:?| ?:)"
    r"|(?:(?:所以|因此|因而|故|[综綜]上(?:所述)?|应|應|我|本题|本題)[,，]? ?){0,3}[选選][择擇]? ?:?"
    r"|(?:答え|正解|解答|정답|답) ?(?:[は은는:])"
    r"|(?:(?:la|a|die|het) )?(?:(?:bonne|richtige|korrekte|правильный|верный|doğru|juiste) )?"
    r"(?:respuesta|réponse|antwort|resposta|risposta|ответ|đáp án|jawaban|cevap|antwoord|odpowiedź|svar|उत्तर|الإجابة)"
    r"(?: (?:correcta|correcte|correta|corretta|finale?|đúng|yang benar))?"
    r"(?: ?:| (?:es|est|ist|lautet|é|è|là|adalah|is)\b(?-i: la| a)? ?:?)"
    r")\s*(.+?)(?: ?(?:です|だ|입니다|이다))?[.。]?",
    re.IGNORECASE,
)
_TAKEN = re.compile(
    rf"(?:(?i:{_SO}),? )?(?:I|[Ww]e)(?: would| will|['’]d|['’]ll)? (?:choose|pick|select|go (?:with|for)) (.+)"
)
# Headings that may stand over a whole text too. So they count only if they begin the last line.
_LABEL = re.compile(r"[#> \t]{0,9}(?:ans ?[:.=]|(?:solution|response|result|final) ?:) ?(\S.*)", re.IGNORECASE)
_SO_LINE = re.compile(rf"{_SO}(?:[,:] (.+)| (.+\.))", re.IGNORECASE)
_THE_ANSWER = r"the (?:(?:final|correct|right|best) )?(?:answer|option|choice)"
_AMONG = r"(?:among|(?:out )?of) (?:all )?(?:the|these) (?:(?:given|above|four|five) )?(?:options|choices|answers)"
_SUBJECT = re.compile(
    rf"((?:{_SO},? |{_AMONG}, )?only |(?:{_SO},?|{_AMONG},|overall,) )?(.+) is (?:({_THE_ANSWER})|correct|right)\.?",
    re.IGNORECASE,
)
# "It" refers to a choice in the text before.
_IT = re.compile(
    rf"(?:{_SO},? )?(?:it(?:['’]s| is| must be| has to be)|(?:this|that) (?:corresponds to|matches))"
    r" ((?:(?:the )?(?:option|choice|letter|answer) )?\W{0,4}(?-i:[A-Z]\b|[a-z]\)).*)",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    rf"(?:{_SO},? )?(?:I (?:think|believe) (?:that )?|((?:in (?:conclusion|summary|short|the end|this case)"
    r"|to (?:conclude|summari[sz]e|sum up)|as a result|based on|given|since|because|as(?! (?:for|to|if|though)\b)"
    r"|considering|looking at|among|of (?:the|these|all)|from|after|according to|having|finally|overall|clearly"
    rf"|ultimately|consequently|accordingly)\b[^.!?;:\n]{{0,300}}), )(?=(?:{_SO},? )?(?:(?:the|my) )?{_HEAD}{_IS})",
    re.IGNORECASE,
)
_OF_OTHERS = re.compile(
    r"\b(?:say|says|said|claim\w*|think\w*|thought|believ\w*|tell\w*|told|suggest\w*|argu\w+|hypothe\w*"
    r"|is (?:the|my) (?:\w+ )?(?:answer|option|choice))\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(
    rf"(?<=[.!;])\s+(?=\S)|(?<=[。；])\s*(?=\S)|,\s(?={_SO}\b)|[,，]\s?(?=所以|因此|故)", re.IGNORECASE
)
_LONGEST = 1000  # characters of a line; after a longer line, models state the answer on another line

# Sentences that name any one choice.
_SAYS = re.compile(
    rf"\b(?i:{_HEAD}{_IS}?)\W{{0,4}}(?:([A-Z])\b|(?<=\()([a-z])(?=\)))"
    r"|(?:答案|选项|選項|[选選][择擇]?)[是为為]?\W{0,3}([A-Z])(?![A-Za-z])"
    rf"|(?:\b([A-Z])|\(([a-z])\))\W{{0,4}} is (?i:{_THE_ANSWER}|correct|right)",
    re.ASCII,
)
_EXPLAINS = re.compile(
    r"\W*(?:explanation|reason|reasoning|rationale|justification|解析|解释|解釋|理由|分析|説明|설명|해설)\b[^\w:]*:"
    r"|\W*(?:because|since)\b",
    re.IGNORECASE,
)
# Lower-case letters count, except "i", units ("5 g"), "e.g." and calls ("f(x)"). "a" counts where it is no article.
_LONE_LETTER = re.compile(
    r"(?<![\w'’])[A-Z](?![\w'’])|[(\[][A-Za-z][)\]]"
    r"|(?<![\w.])(?<!\w['’])(?<!\d )(?:[b-hj]|a(?=\W*\Z|[.,;:)]| (?:is|was|fits|holds|because|since|and|or)\b)"
    r"|(?:(?<=option )|(?<=letter )|(?<=choice ))a)(?![\w(]|\.\w|['’](?!s\b)\w)",
    re.ASCII,
)


def answer_in(line: str, before: str = "", *, may_be_one_of_many: bool = True) -> str | None:
    """Return the answer that the last sentence of a line states; `None` if the sentence states no answer.

    Args:
        line (`str`): the line.
        before (`str`, *optional*): the text before the line, which may say that the line is the answer.
        may_be_one_of_many (`bool`, *optional*, defaults to `True`):
            Whether "B is correct" counts as an answer if no text is before the line.
    """
    line = line.strip()
    stated = _of_sentence(line, before, may_be_one_of_many and not before.strip())
    if stated is None and not names_a_choice(line) and _is_heading(last_line(before)) and not is_denied(before):
        return line
    if stated is None and (label := _LABEL.fullmatch(line[:_LONGEST])):
        return label[1]
    if stated is not None or len(line) > _LONGEST:
        return stated
    ends = list(_SENTENCE_END.finditer(line))
    if not ends or names_a_choice(line[: ends[-1].start()]):
        return None
    return _of_sentence(line[ends[-1].end() :], f"{before}\n{line[: ends[-1].start()]}", False)


def names_a_choice(text: str) -> bool:
    """Return whether a sentence of the text says that a choice is the answer."""
    return _SAYS.search(text) is not None


def first_sentence(line: str) -> tuple[str, str]:
    """Return a line's first sentence and the rest of the line."""
    end = _SENTENCE_END.search(line[:_LONGEST])
    return (line[: end.start()], line[end.end() :]) if end else (line, "")


def names_another(text: str, letter: str) -> bool:
    """Return whether a sentence of the text says that a choice other than `letter` is the answer."""
    return any(match[match.lastindex or 0].upper() != letter for match in _SAYS.finditer(text))


def last_line(text: str) -> str:
    """Return the end of a text's last line that is not blank."""
    text = text.rstrip()
    return text[text.rfind("\n") + 1 :][-_LONGEST:]


def is_denied(before: str) -> bool:
    """Return whether the last sentence before a lone letter denies it, doubts it or joins it to other letters."""
    return DENIAL.search(_SENTENCE_END.split(last_line(before))[-1]) is not None


def _is_heading(line: str) -> bool:
    return _LEAD.search(line[-100:]) is not None or _HEADING.fullmatch(line[-100:].strip("#*: \t>")) is not None


def is_announced(text: str) -> bool:
    """Return whether a text begins as explanations do."""
    return _EXPLAINS.match(text) is not None


def takes_nothing_back(text: str, letter: str) -> bool:
    """Return whether the text after an answer can be its explanation.

    Such a text has no doubt, no change of mind and no letter of another choice.
    """
    return not DOUBT.search(text) and _letters(text) <= {letter, "I"} and re.search(r"\w", text) is not None


def _letters(text: str) -> set[str]:
    return {letter.strip("()[]").upper() for letter in _LONE_LETTER.findall(text)}


def _without_clause(sentence: str) -> str:
    """Return a sentence without "I think" or "Since it lies on the Seine," before "the answer is".

    The clause stays if it has a doubt, the words of someone else, or the letter of a choice that the rest does not
    name.
    """
    clause_match = _CLAUSE.match(sentence)
    if not clause_match:
        return sentence
    clause, rest = clause_match[1], sentence[clause_match.end() :]
    return sentence if clause and (_OF_OTHERS.search(clause) or _speaks_against(clause, rest)) else rest


def _speaks_against(text: str, stated: str) -> bool:
    """Return whether a text has a doubt, or the letter of a choice that `stated` does not name."""
    letters = _letters(stated) - {"I"}
    return bool(text.strip()) and not takes_nothing_back(text, letters.pop() if len(letters) == 1 else "I")


def _of_sentence(sentence: str, before: str, is_all: bool) -> str | None:
    sentence = _without_clause(sentence.lstrip("# \t>").removeprefix("- "))
    match = _ANSWER_LINE.fullmatch(sentence)
    if match and match[1] and not match[2] and not match[3]:  # **Answer: B**
        return match[4].removesuffix(".").removesuffix(match[1])
    if match:
        again = _ANSWER_LINE.fullmatch(match[4])  # "Final answer: The correct option is B."
        return again[4] if again else _stated(match[4], before, False) or match[4]
    if sentence.startswith("**") and sentence.rstrip(".。").endswith("**") and sentence.count("**") == 2:
        return _of_sentence(sentence.rstrip(".。").strip("*"), before, is_all)
    if sentence.startswith("**"):  # **答案**：B
        sentence = re.sub(r"^\*\*([^*]+)\*\*", r"\1", sentence)
    return _stated(sentence, before, is_all)


def _stated(sentence: str, before: str, is_all: bool) -> str | None:
    match = _SUBJECT.fullmatch(sentence)
    if match:
        return match[2] if (match[1] or match[3] or is_all) and not names_a_choice(before) else None
    match = _IT.fullmatch(sentence)
    if match and not _SENTENCE_END.search(match[1]):
        return None if _speaks_against(last_line(before), match[1]) or names_a_choice(before) else match[1]
    for pattern in (_ELSEWHERE, _TAKEN, _SO_LINE):
        if match := pattern.fullmatch(sentence):
            return match[match.lastindex or 0]
    return None
