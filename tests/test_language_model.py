"""Lexicons and language models: against sums over every word, formulas written out, bad files."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import product

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real import REGATTA
from speaking import REAL

from regatta.data.alphabet import Alphabet
from regatta.decode import arpa
from regatta.decode.compiled import compiled
from regatta.decode.graph import begin, end, mass, score
from regatta.decode.language import LanguageModel
from regatta.decode.lexicon import Lexicon, Tree
from regatta.decode.ngrams import BEGIN, END, UNKNOWN
from regatta.decode.smoothing import FLOOR, Estimation

LETTERS = Alphabet("abc' ", separator="~")
WORDS = ["a", "aa", "ab", "abc", "b", "bb", "c", "ca", "cab"]
SOME = settings(max_examples=30, deadline=None)
texts = st.lists(st.lists(st.sampled_from(WORDS[:6]), min_size=1, max_size=6), min_size=1)


def said(sentences):
    return [" ".join(sentence) for sentence in sentences]


def zipf(sentences: int, words: int = 9, seed: int = 0) -> list[list[str]]:
    """Enough of a text that counts of counts fall as they do in texts of people."""
    rng = np.random.default_rng(seed)
    chosen = [a + b for a, b in product("abc", "abc")][:words]
    share = 1 / np.arange(1, words + 1)
    follow = [rng.permutation(share / share.sum()) for _ in range(words)]
    made = []
    for _ in range(sentences):
        at, sentence = rng.integers(words), []
        for _ in range(rng.integers(1, 7)):
            at = rng.choice(words, p=follow[at])
            sentence.append(chosen[at])
        made.append(sentence)
    return made


def logp(model: LanguageModel, history: list[str], word: str) -> float:
    """As a decoder asks: word by word from the beginning. </s> asks for the end."""
    numbers, context = model.lexicon.numbers, begin(model.graph)
    for before in history:
        _, context = score(model.graph, context, numbers[before])
    if word == END:
        return end(model.graph, context)
    return score(model.graph, context, numbers[word])[0]


def check_masses(model: LanguageModel, rel: float = 1e-9) -> None:
    """Every interval in every context, against the sum over its words."""
    graph, size = model.graph, len(model.lexicon)
    for context in range(len(graph.contexts) - 1):
        p = np.exp([score(graph, context, word)[0] for word in range(size)])
        for lo in range(size):
            for hi in range(lo + 1, size + 1):
                naive = math.fsum(p[lo:hi])
                assert math.exp(mass(graph, context, lo, hi)) == pytest.approx(naive, rel, 1e-15)


def child(tree: Tree, node: int, symbol: int) -> int:
    """The node that a symbol leads to, or -1."""
    children = tree.children[tree.nodes["first"][node] : tree.nodes["first"][node + 1]]
    (found,) = np.nonzero(children["symbol"] == symbol)
    return int(children["node"][found[0]]) if len(found) else -1


# -- lexicons -------------------------------------------------------------------------------


@SOME
@given(st.sets(st.text("abc'", min_size=1, max_size=6).filter(lambda w: w.strip("'")), min_size=1))
def test_a_node_is_an_interval_of_the_words_that_begin_with_it(words):
    for alphabet in (LETTERS, Alphabet("abc' ")):
        lexicon = Lexicon.of_words(words, alphabet)
        assert set(lexicon.words) == words
        spelled = [alphabet.encoded(word) for word in lexicon.words]
        assert spelled == sorted(spelled)
        tree, reached = lexicon.tree, {0}
        for prefix in {tuple(s[:n]) for s in spelled for n in range(1, len(s) + 1)}:
            node = 0
            for symbol in prefix:
                node = child(tree, node, symbol)
            reached.add(node)
            under = [n for n, s in enumerate(spelled) if tuple(s[: len(prefix)]) == prefix]
            found = tree.nodes[node]
            assert list(range(found["lo"], found["hi"])) == under
            assert found["word"] == (under[0] if spelled[under[0]] == list(prefix) else -1)
            follow = {
                s[len(prefix)] for n, s in enumerate(spelled) if n in under and s[len(prefix) :]
            }
            known = {s for s in range(alphabet.outputs) if child(tree, node, s) >= 0}
            assert known == follow
        assert reached == set(range(len(tree.nodes) - 1))
        assert tuple(tree.nodes[0])[1:] == (0, len(words), -1)


def test_doubled_letters_are_spelled_with_the_separator():
    lexicon = Lexicon.of_words(["cab", "aab"], LETTERS)
    assert lexicon.words == ("aab", "cab")
    assert list(lexicon.tree.children["symbol"]) == [0, 2, 5, 0, 0, 1, 1]


def test_a_lexicon_file_tells_what_it_cannot_spell(tmp_path):
    path = tmp_path / "words.lst"
    path.write_bytes(b"CAB\nab a b |\n\nac(2) K AE\nx2\nc\xff\n")
    lexicon = Lexicon.of_file(path, LETTERS)
    assert lexicon.words == ("ab", "ac", "cab")
    assert lexicon.problems.counts() == {"unknown symbols": 1, "not UTF-8": 1}
    (unspelled,) = lexicon.problems.examples("unknown symbols")
    assert str(unspelled) == "words.lst:5 'x2': unknown symbols (2 x)"
    path.write_text("xyz\n")
    with pytest.raises(ValueError, match=r"words\.lst .*1 x unknown symbols.*an alphabet that has"):
        Lexicon.of_file(path, LETTERS)


# -- counted models -------------------------------------------------------------------------


@SOME
@given(texts, st.integers(1, 5), st.sampled_from(["kneser-ney", "add-k"]), st.floats(1e-3, 2))
def test_what_is_counted_sums_to_one_and_masses_are_sums(sentences, order, smoothing, k):
    lexicon = Lexicon.of_words(WORDS, LETTERS)
    model = LanguageModel.of_texts(said(sentences), lexicon, order, smoothing, k)
    for context in range(len(model.graph.contexts) - 1):
        p = [math.exp(score(model.graph, context, word)[0]) for word in range(len(WORDS))]
        assert min(p) > 0
        assert sum(p) + math.exp(end(model.graph, context)) == pytest.approx(1, abs=1e-12)
    check_masses(model)


def kneser_ney(sentences, order, words):
    """Chen and Goodman's formula, word for word and slowly."""
    raw = Counter(
        tuple(s[i : i + n])
        for s in ([BEGIN, *s, END] for s in sentences)
        for n in range(1, order + 1)
        for i in range(len(s) - n + 1)
    )
    before = defaultdict(set)
    for gram in raw:
        before[gram[1:]].add(gram[0])

    def times(gram):
        if gram == (BEGIN,):
            return 0
        whole = len(gram) == order or gram[0] == BEGIN
        return raw[gram] if whole else len(before[gram])

    discounts = {}
    for n in range(1, order + 1):
        of = Counter(times(gram) for gram in raw if len(gram) == n)
        y = of[1] / (of[1] + 2 * of[2]) if of[1] else 0
        d = [m - (m + 1) * y * of[m + 1] / of[m] if of[m] else 0 for m in (1, 2, 3)]
        usable = all(0 < amount < m for m, amount in zip((1, 2, 3), d, strict=True))
        discounts[n] = d if usable else [0.5, 1.0, 1.5]

    def p(word, context):
        lower = p(word, context[1:]) if context else 1 / (len(words) + 1)
        follow = {g[-1]: times(g) for g in raw if len(g) == len(context) + 1 and g[:-1] == context}
        total = sum(follow.values())
        if not total:
            return lower
        taken = {w: discounts[len(context) + 1][min(c, 3) - 1] for w, c in follow.items() if c}
        own = max(follow.get(word, 0) - taken.get(word, 0), 0)
        return own / total + sum(taken.values()) / total * lower

    return p, discounts


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_kneser_ney_is_its_formula(order):
    sentences = zipf(200)
    lexicon = Lexicon.of_words([*{w for s in sentences for w in s}, "a"], LETTERS)
    model = LanguageModel.of_texts(said(sentences), lexicon, order)
    p, discounts = kneser_ney(sentences, order, lexicon.words)
    usable = [d for d in discounts.values() if d != [0.5, 1.0, 1.5]]
    assert order == 1 or usable, "the text is too small to show anything"
    rng = np.random.default_rng(order)
    for _ in range(40):
        history = list(rng.choice(lexicon.words, rng.integers(0, 6)))
        context = (BEGIN, *history)[max(0, len(history) + 2 - order) :]
        for word in (*rng.choice(lexicon.words, 3), END):
            assert math.exp(logp(model, history, word)) == pytest.approx(p(word, context), 1e-9)


def test_add_k_is_its_formula_for_contexts_never_seen_too():
    lexicon = Lexicon.of_words(["a", "b", "c"], LETTERS)
    two = LanguageModel.of_texts(["a b a", "a a"], lexicon, 2, "add-k", 0.5)
    size = 4  # with the end
    seen = {(): {"a": 2}, ("a",): {"b": 1, "a": 1, END: 2}, ("b",): {"a": 1}, ("c",): {}}
    for context, follow in seen.items():
        for word in ("a", "b", "c", END):
            expected = (follow.get(word, 0) + 0.5) / (sum(follow.values()) + 0.5 * size)
            assert math.exp(logp(two, list(context), word)) == pytest.approx(expected)
    three = LanguageModel.of_texts(["a b a", "a a"], lexicon, 3, "add-k", 0.5)
    assert math.exp(logp(three, ["a", "b"], "a")) == pytest.approx(1.5 / 3)
    assert math.exp(logp(three, ["b"], "a")) == pytest.approx(1 / 4)  # nothing began with b
    assert math.exp(logp(three, ["c", "b"], "a")) == pytest.approx(1 / 4)  # never c b
    assert math.exp(logp(three, ["c", "b", "a"], END)) == pytest.approx(1.5 / 3)  # but b a


def test_the_published_form_is_one_running_text():
    lexicon = Lexicon.of_words(["a", "b", "c"], LETTERS)
    model = LanguageModel.of_texts(["a b", "a a"], lexicon, k=0.1, paper=True)
    assert not model.has_end
    assert math.exp(logp(model, [], "a")) == pytest.approx(3 / 4)
    assert math.exp(logp(model, [], "b")) == pytest.approx(1 / 4)
    assert math.exp(logp(model, [], "c")) == pytest.approx(FLOOR)
    assert math.exp(logp(model, ["b"], "a")) == pytest.approx(1.1 / 1.3)  # across the end of a text
    assert math.exp(logp(model, ["c", "b"], "a")) == pytest.approx(1.1 / 1.3)
    assert math.exp(logp(model, ["c"], "a")) == pytest.approx(1 / 3)
    assert logp(model, ["a"], END) == 0
    check_masses(model)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"order": 0}, "order of a language model is 1 to 5, not 0"),
        ({"order": 6}, "order of a language model is 1 to 5, not 6"),
        ({"smoothing": "witten-bell"}, "name one of kneser-ney, add-k"),
        ({"smoothing": "add-k", "k": 0.0}, "k must be more than 0"),
    ],
)
def test_what_cannot_be_estimated_is_said(wrong, message):
    with pytest.raises(ValueError, match=message):
        LanguageModel.of_texts(["a"], Lexicon.of_words(["a"], LETTERS), **wrong)


def test_a_model_of_nothing_is_refused():
    with pytest.raises(ValueError, match="there are no words"):
        LanguageModel.of_texts(["?", "2"], Lexicon.of_words(["a"], LETTERS))


# -- ARPA files -----------------------------------------------------------------------------

Gram = tuple[str, ...]
log10s = st.floats(-4, 0).map(lambda x: round(x, 3))


@st.composite
def back_off_models(draw):
    """Any: not normalised, and some n-grams without their ends."""
    words = [BEGIN, END, *draw(st.sets(st.sampled_from(WORDS), min_size=1, max_size=5))]
    table: dict[Gram, tuple[float, float]] = {
        (word,): (draw(log10s), draw(log10s)) for word in draw(st.permutations(words))
    }
    inner = [(word,) for word in words if word != END]
    for _ in range(draw(st.integers(0, 2))):
        made = {
            (*draw(st.sampled_from(inner)), draw(st.sampled_from(words[1:])))
            for _ in range(draw(st.integers(1, 6)))
        }
        table |= {gram: (draw(log10s), draw(log10s)) for gram in sorted(made)}
        inner = [gram for gram in made if gram[-1] != END]
        if not inner:
            break
    return words[2:], table


def arpa_text(table: dict[Gram, tuple[float, float]]) -> str:
    sizes = Counter(map(len, table))
    lines = ["a comment", "\\data\\", *(f"ngram {n} = {sizes[n]}" for n in sorted(sizes))]
    for n in sorted(sizes):
        lines += ["", f"\\{n}-grams:"]
        lines += [f"{p}\t{' '.join(g)}\t{b}" for g, (p, b) in table.items() if len(g) == n]
    return "\n".join([*lines, "\\end\\", ""])


def back_off(table, context: Gram, word: str) -> float:
    if len(context) >= max(map(len, table)):
        return back_off(table, context[1:], word)
    if (*context, word) in table:
        return table[*context, word][0]
    return table.get(context, (0, 0))[1] + back_off(table, context[1:], word)


@SOME
@given(back_off_models(), st.lists(st.integers(0, 8), max_size=5))
def test_arpa_files_score_as_they_define(tmp_path_factory, model, choices):
    words, table = model
    folder = tmp_path_factory.mktemp("arpa")
    (folder / "lm.arpa").write_text(arpa_text(table))
    lexicon = Lexicon.of_words(words, LETTERS)
    read = LanguageModel.of_file(folder / "lm.arpa", lexicon)
    arpa.write(folder / "again.lm.gz", arpa.read(folder / "lm.arpa"))
    again = LanguageModel.of_file(folder / "again.lm.gz", lexicon)
    history = [words[choice % len(words)] for choice in choices]
    for word in (*words, END):
        expected = back_off(table, (BEGIN, *history), word) * math.log(10)
        assert logp(read, history, word) == pytest.approx(expected, abs=1e-9)
        assert logp(again, history, word) == pytest.approx(expected, abs=1e-8)
    check_masses(read)


def test_a_counted_model_is_the_same_from_its_file(tmp_path):
    sentences = zipf(30)
    lexicon = Lexicon.of_texts(said(sentences), LETTERS)
    for n, estimation in enumerate(
        [Estimation(4), Estimation(3, "add-k", 0.2), Estimation(paper=True)]
    ):
        ngrams = estimation.of(sentences)
        arpa.write(tmp_path / f"{n}.arpa", ngrams)
        made = LanguageModel.of_ngrams(ngrams, lexicon)
        read = LanguageModel.of_file(tmp_path / f"{n}.arpa", lexicon)
        assert read.order == made.order
        assert read.has_end == made.has_end
        fit = made.fit(sentences)
        assert fit.perplexity == pytest.approx(read.fit(sentences).perplexity, rel=1e-8)


WHOLE = """\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-1 <s> -0.5
-1 </s>
-0.3 a -0.2
-0.4 b -0.1

\\2-grams:
-0.1 <s> a
-0.2 a b

\\end\\
"""


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (lambda t: t.replace("\\data\\\n", ""), 14, r"no \\data\\ here"),
        (lambda t: t[: t.index("-0.4 b")], 8, r"the file ends here, without \\end\\.*cut short"),
        (lambda t: t.replace("\\end\\\n", ""), 13, r"without \\end\\"),
        (lambda t: t.replace("ngram 1=4", "ngram 1=5"), 11, r"4 1-grams end here, .* says 5"),
        (lambda t: t.replace("ngram 2=2", "ngram 2=1"), 15, r"2 2-grams end here, .* says 1"),
        (lambda t: t.replace("ngram 2=2\n", ""), 10, r"where \\end\\ is due"),
        (lambda t: t.replace("ngram 1=4\n", ""), 2, r"where ngram 1=\.\.\. is due"),
        (lambda t: t.replace("\\2-grams:", "\\3-grams:"), 11, r"where \\2-grams: is due"),
        (
            lambda t: t.replace("-0.2 a b", "-0.2 a"),
            13,
            "'-0.2 a' where a probability, a 2-gram and",
        ),
        (lambda t: t.replace("-0.2 a b", "-0.2 a b 0 0"), 13, "'-0.2 a b 0 0' where"),
        (lambda t: t.replace("-0.2 a b", "much a b"), 13, "'much' is no number"),
        (lambda t: t.replace("-0.2 a b", "nan a b"), 13, "'nan' is no number"),
        (lambda t: t.replace("-0.2 a b", "0.2 a b"), 13, "0.2 is no logarithm"),
        (lambda t: t.replace("-0.2 a b", "-0.2 a c"), 13, "'c' is not among the 1-grams"),
        (lambda t: t.replace("-0.2 a b", "-0.2 <s> a"), 13, "was there before: remove one"),
        (lambda t: t.replace("-0.4 b", "-0.4 a"), 9, "was there before: remove one"),
        (
            lambda t: t.replace("ngram 2=2", "ngram 2=2\nngram 3=1").replace(
                "\\end\\", "\\3-grams:\n-1 b a b\n\\end\\"
            ),
            17,
            "its beginning 'b a' is not among the 2-grams: add it there",
        ),
    ],
)
def test_a_damaged_arpa_file_names_the_line_and_what_to_do(tmp_path, change, line, message):
    path = tmp_path / "lm.arpa"
    path.write_text(change(WHOLE))
    with pytest.raises(ValueError, match=rf"lm\.arpa, line {line}: .*{message}") as raised:
        arpa.read(path)
    assert str(raised.value).count(": ") >= 2, "there is no remedy"


def test_arpa_files_of_other_bytes(tmp_path):
    path = tmp_path / "lm.arpa"
    path.write_bytes(WHOLE.encode().replace(b"a b", b"a \xff"))
    with pytest.raises(ValueError, match=r"lm\.arpa:13: not UTF-8: convert"):
        arpa.read(path)
    packed = gzip.compress(WHOLE.encode(), mtime=0)
    path = tmp_path / "lm.arpa.gz"
    for damaged in (packed[:-12], packed[:40] + bytes(20) + packed[60:], b"plain"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"lm\.arpa\.gz.*"):
            arpa.read(path)


def test_what_only_the_lexicon_or_only_the_model_knows(tmp_path):
    path = tmp_path / "other"  # known as ARPA by what stands in it
    lexicon = Lexicon.of_words(["a", "c", "ca"], LETTERS)
    path.write_text(
        WHOLE.replace("-0.3 a", "-0.3 A").replace("> a", "> A").replace("2 a b", "2 A b")
    )
    without = LanguageModel.of_file(path, lexicon)
    assert (without.unknown, without.left_out) == (2, 1)
    assert logp(without, [], "a") == pytest.approx(-0.1 * math.log(10))  # A is a
    assert logp(without, ["a"], "c") == pytest.approx(math.log(FLOOR) - 0.2 * math.log(10))
    path.write_text(WHOLE.replace("-0.4 b", "-0.4 <UNK>").replace(" b", " <UNK>"))
    shared = LanguageModel.of_file(path, lexicon)
    assert (shared.unknown, shared.left_out) == (2, 0)
    for word in ("c", "ca"):
        expected = -0.4 * math.log(10) - math.log(2)
        assert logp(shared, ["c"], word) == pytest.approx(expected)
    check_masses(shared)


@pytest.mark.skipif(not (REAL / "mini-an4").is_dir(), reason=f"AN4 is not in {REAL}")
def test_an4_comes_with_a_model_that_can_be_read():
    etc = REAL / "mini-an4" / "an4" / "etc"
    lexicon = Lexicon.of_file(etc / "an4.dic", Alphabet())
    assert not lexicon.problems
    assert len(lexicon) > 90
    model = LanguageModel.of_file(etc / "an4.ug.lm", lexicon)
    assert (model.order, model.has_end) == (2, True)
    assert model.left_out + len(lexicon) - model.unknown == 107 - 3
    assert logp(model, [], "yes") == pytest.approx(-2.0253 * math.log(10))
    assert logp(model, [], END) == pytest.approx(0)
    check_masses(model)


# -- the command ----------------------------------------------------------------------------


def regatta(*words: object, code: int = 0) -> tuple[str, str]:
    done = subprocess.run(
        [*REGATTA, "language-model", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_a_model_is_made_of_texts_and_manifests(tmp_path):
    (tmp_path / "a.txt").write_text("The cat sat.\nThe dog ran\n1 2 3\n")
    row = {"id": "one", "audio": "one.wav", "text": "the cat ran home"}
    (tmp_path / "b.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "test.txt").write_text("the cat flew home\n")
    made = tmp_path / "lm.arpa"
    given = (tmp_path / "a.txt", tmp_path / "b.jsonl", "--out", made, "--order", 2)
    out, err = regatta(*given, "--test", tmp_path / "test.txt", "--json")
    told = json.loads(out)
    assert (told["sentences"], told["words"], told["ngrams"]) == (3, 10, [9, 10])
    assert (told["test"]["words"], told["test"]["unknown"]) == (4, 1)
    assert "1 x unknown symbols, left out" in err
    assert "a.txt:3" in err
    lexicon = Lexicon.of_words(["the", "cat", "dog", "sat", "ran", "home", "cow"], Alphabet())
    model = LanguageModel.of_file(made, lexicon)
    assert model.unknown == 1
    assert UNKNOWN in made.read_text()
    fit = model.fit([["the", "cat", "flew", "home"]])
    assert fit.perplexity == pytest.approx(told["test"]["perplexity"], rel=1e-6)
    _, err = regatta(*given, code=2)
    assert "lm.arpa is there already: name another with --out" in err


def test_the_command_line_starts_without_numba():
    code = "import regatta, regatta.cli, sys; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_functions_are_compiled_where_nothing_can_be_written(monkeypatch):
    monkeypatch.setattr("numba.core.caching.CompileResultCacheImpl._locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator"):
        numba.njit(cache=True)(abs_difference)
    assert compiled(abs_difference)(3, 5) == 2


def abs_difference(a, b):
    return a - b if a > b else b - a
