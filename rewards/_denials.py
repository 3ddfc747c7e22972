r"""The words that deny an answer, hedge it, or join it to another one.

Which words count depends on the place: "third" changes the number before it, and says nothing about a box beside it.
So there is one collection for each place. A word that counts in most places is listed once, in `_DENIED`, `_HEDGED` or
`_ROUGHLY`.

BESIDE_A_BOX     words in the sentence around a `\boxed{}`
BETWEEN          words between two answers, which make them a hedge
AFTER_A_NUMBER   words that are no unit
BEFORE_A_NUMBER  pattern of words that make a number inexact
DENIAL           pattern, searched for in the sentence before a lone letter
DOUBT            pattern, searched for in the text after an answer
"""

import re


_DENIED = "not never neither nor wrong incorrect false cannot unlikely invalid"
_HEDGED = "maybe perhaps possibly probably"
_ROUGHLY = "about around almost"

BESIDE_A_BOX = frozenset(f"""
    {_DENIED} {_HEDGED} {_ROUGHLY}
    no either or approximately roughly nearly guess unsure rejected mistaken isn't isn’t isnt can't can’t don't wasn't
    nicht oder vielleicht pas ou nunca 不是 或 可能
""".split())  # fmt: skip
BETWEEN = frozenset(rf"""
    {_HEDGED}
    or and alternatively else either also even otherwise vs versus oder vielleicht und ou et peut être o y quizás
    或 或者 和 または или \to \rightarrow \longrightarrow \implies \sim \lor \vee \land \wedge \mid \cup \pm
    \leftrightarrow \iff \slash \vert \cdot \text \le \ge \leq \geq \ne \neq \not \times \div
""".split())  # fmt: skip
# Words that a unit may contain too ("times", "more", "options") are left out, because the number before them must be
# right in any case.
_ENGLISH = """
    or and no approx doubtful dubious if when unless least most than minus plus half double triple hundred thousand
    million billion trillion quadrillion googol dozen is was negative infinity pi mod untrue fake either but except so
    otherwise instead hundreds thousands millions billions trillions dozens tens quarter third score tenth tenths
    hundredth hundredths thousandth thousandths millionth millionths thirds halves fourths fifths sixths sevenths
    eighths ninths elevenths twelfths twentieths factorial root over divided multiplied modulo base power reciprocal
    inverse squared cubed then unknown unsure uncertain impossible guess answer lakh lakhs crore crores ish nope nah
    nay think believe suppose assume guessed estimate estimated estimation rounded approximate approximation
    approximated circa close give take kinda sorta dunno sure doubt error without versus vs hardly might may could
    should would isnt one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety zero wait hmm myriad gross
    permille promille permil basis grand doubled tripled quadrupled halved thirded quartered twice thrice itself octal
    hex hexadecimal binary ternary lac lacs arab arabs kharab kilo mega giga tera milli micro nano tau infinite
    mistaken mistake rejected reject excluded ruled erroneous inaccurate imprecise fail fails failed refuted disproved
    disproven eliminated discarded dismissed denied void nonsense bogus ignored ignore disregard disregarded
    contradiction contradicts contradicted contradictory inconsistent implausible improbable unacceptable inadmissible
    extraneous retracted withdrawn disqualified allegedly supposedly hypothetical
"""
_NORTH = """
    nicht nein kein keine keiner nie niemals vielleicht etwa zirka oder und ungefaehr mio tausend hundert millionen
    milliarde milliarden billionen dutzend falsch halb wahrscheinlich mindestens ohne sondern beinahe fast niet geen
    nooit misschien ongeveer bijna duizend honderd miljoen miljard fout inte ej aldrig kanske eller tusen hundra miljon
    miljoner miljarder tysiac tysiace milion miliony lub albo chyba ikke kanskje
"""  # German, Dutch, Swedish, Polish
_SOUTH = """
    non pas jamais peut ou environ presque mille milliard milliards faux moins demi sauf aucun rien ni douzaine
    centaine millier milliers nunca quiza quizas casi mil cien ciento cientos millon millones falso falsa menos mas
    jamas tampoco sin acaso docena nao talvez quase milhao milhoes bilhao bilhoes mais cerca ovvero oppure mai forse
    quasi mila cento milione milioni miliardo miliardi meno piu dozzina nec haud
"""  # French, Spanish, Portuguese, Italian, Latin
AFTER_A_NUMBER = frozenset(f"{_DENIED} {_HEDGED} {_ROUGHLY} {_ENGLISH} {_NORTH} {_SOUTH}".split())
BEFORE_A_NUMBER = rf"not|{_ROUGHLY.replace(' ', '|')}|approximately|approx\.?|roughly|nearly|circa|maybe|probably"

# In prose, about a choice.
_AGAINST = f"{_DENIED} {_HEDGED} none untrue except but rather might may could if unless second".replace(" ", "|")
_AGAINST += (
    r"|third|fourth|exclu\w+|eliminat\w+|reject\w*|(?:rul(?:ed?|es|ing)|crossed) (?:it |this |that )?out|contrary"
    r"|fail\w*|contradict\w*|opposite|reverse|inverse|nonsense|disqualif\w+|den(?:y|ied|ies|ying)|a lie|far from"
    r"|hardly|barely|scarcely|nobody|nothing|least|worst|impossible|ignor\w+|disregard\w*|dismiss\w*|discard\w*|avoid\w*"
    r"|refut\w+|disprov\w+|doubt\w*"
)
DENIAL = re.compile(
    rf"\b(?:{_AGAINST}|unlike|than|bad)\b|n['’]t\b|[不错錯误誤非]|\b(?:or|and|vs|versus)\W*\Z",
    re.IGNORECASE,
)
DOUBT = re.compile(
    rf"[?？<>]|n['’]t\b|\b(?:{_AGAINST}|wait|actually|hmm+|no|un?sure|would|alternatively|instead|sorry|correction"
    r"|mistake\w*|mistaken|scratch|reconsider|oops|either|however|guess\w*|joke|back|changed|meant|unknown|unclear|also"
    r"|as well|too|right|correct|every|each|random\w*|suppos\w+|assum\w+|pretend\w*|presumabl[ey]|although|though"
    r"|despite|nevertheless|seems?|all of|any|both|forget|first|last|former|latter|another|other than)\b"
    r"|[不错錯吗嗎或]|等等|应该|應該|可能|也许|也許"
    r"|^[^\w\n]*(?:or|and)\b"
    r"|^[^\w\n]*(?:question|user|human|assistant|system|q|options|choices)[^\w\n:]*:",
    re.IGNORECASE | re.MULTILINE,
)
