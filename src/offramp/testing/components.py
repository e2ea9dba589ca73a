"""The promises that answers and scorers share."""

import json
import tempfile
from typing import Any

import torch
from torch import Tensor

from offramp.answers import Answer
from offramp.errors import ConfigError, SplitError
from offramp.policy import Policy
from offramp.replay import replay
from offramp.scorers import History, Scorer
from offramp.testing.promises import Promise, expect, hold
from offramp.testing.subjects import AnswerSpecimen, ScorerSpecimen, Specimen, smallest

AnySpecimen = Specimen[Any]

TOLERANCE = 1e-4  # what float32 sums in another order may differ by, relative to the values


def same(one: Tensor, two: Tensor) -> bool:
    """Whether two results agree up to the order of float32 sums."""
    return one.shape == two.shape and torch.allclose(one, two, rtol=TOLERANCE, atol=TOLERANCE)


def largest_change(one: Tensor, two: Tensor) -> str:
    """How far two results are apart, in words."""
    if one.shape != two.shape:
        return f"shapes {list(one.shape)} and {list(two.shape)}"
    return f"a change of up to {(one.double() - two.double()).abs().max().item():.4g}"


def _is_of_its_kind(specimen: AnySpecimen) -> None:
    kind = f"offramp.{specimen.kind.__name__}"
    if isinstance(specimen.component, type):
        name = specimen.component.__name__
        expect(False, f"an instance, {name}(...)", f"the class {name} itself was given")
    found = type(specimen.component).__name__
    expect(isinstance(specimen.component, specimen.kind), f"a subclass of {kind}", f"got {found}")


def _has_plain_settings(specimen: AnySpecimen) -> None:
    settings = specimen.component.settings()
    try:
        back = json.loads(json.dumps(settings))
    except (TypeError, ValueError) as error:
        expect(False, "settings that JSON can hold", f"it cannot: {error}")
    for name, value in settings.items():
        text = "settings that come back from JSON as they were (a list, say, and no tuple)"
        expect(
            back[name] == value, text, f"`{name}` was {value!r} and came back as {back[name]!r}"
        )


def _runs(specimen: AnySpecimen) -> None:
    for m in specimen.exits(specimen.logits):
        specimen.ask_at(specimen.fitted, specimen.logits, m)


def _constructor_only_stores(specimen: AnySpecimen) -> None:
    component = specimen.component
    fresh, settings = component.clone(), component.settings()
    for name, value in fresh.settings().items():
        text = "a copy with the same settings"
        expect(value == settings[name], text, f"`{name}` was {settings[name]!r} and is {value!r}")
    extra = [name for name in vars(fresh) if name not in settings and name[0] != "_"]
    expect(not extra, "nothing but the settings before fit", f"there is `{', '.join(extra)}`")


def _fit_returns_self(specimen: AnySpecimen) -> None:
    given = specimen.first_fit.returned
    kept = given is specimen.first_fit.component
    expect(kept, "fit to return the object itself", f"it returned {type(given).__name__}")


def _learned_is_named(specimen: AnySpecimen) -> None:
    component, fitted = specimen.component, specimen.fitted
    names = component.learned
    wrong = [name for name in names if not name.endswith("_")]
    expect(not wrong, "learned names that end in `_`", f"`learned` has `{', '.join(wrong)}`")
    for name in names:
        value = getattr(fitted, name, None)
        text = f"fit to set `{name}`, which `learned` names, to a tensor"
        expect(isinstance(value, Tensor), text, f"it is {type(value).__name__}")
    settings = component.settings()
    new = [name for name in vars(fitted) if name not in (*names, *settings) and name[0] != "_"]
    text = "all that fit learns to be named in `learned`, which is what files keep"
    expect(not new, text, f"fit also sets `{', '.join(new)}`")


def _fit_leaves_alone(specimen: AnySpecimen) -> None:
    first = specimen.first_fit
    now = first.component.settings()
    changed = [name for name, value in first.settings.items() if value != now[name]]
    expect(not changed, "the same settings after fit", f"`{', '.join(changed)}` changed")
    expect(first.data_kept, "the logits and labels as they were", "fit changed them in place")


def _fit_repeats(specimen: AnySpecimen) -> None:
    first, second = specimen.fitted.state(), specimen.fit_again().state()
    for name, value in first.items():
        expect(
            torch.equal(value, second[name]),
            "the same from the same data and settings, bit by bit, whatever the global random "
            "state (draw from torch.Generator().manual_seed(self.seed))",
            f"two fits differ in `{name}`: {largest_change(value, second[name])}",
        )


def _saying_repeats(specimen: AnySpecimen) -> None:
    for m in specimen.exits(specimen.logits):
        first, second = (specimen.ask_at(specimen.fitted, specimen.logits, m) for _ in range(2))
        text = "the same samples to give the same, bit by bit, each time"
        expect(torch.equal(first, second), text, f"{largest_change(first, second)} at exit {m}")


def _rows_stand_alone(specimen: AnySpecimen) -> None:
    logits, fitted = specimen.logits, specimen.fitted
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(0))
    for m in specimen.exits(logits):
        whole = specimen.ask_at(fitted, logits, m)
        others = {
            "in another order": (specimen.ask_at(fitted, logits[order], m), whole[order]),
            "without the others": (specimen.ask_at(fitted, logits[:1], m), whole[:1]),
            "in a smaller batch": (specimen.ask_at(fitted, logits[3:8], m), whole[3:8]),
        }
        for how, (found, wanted) in others.items():
            expect(
                same(found, wanted),
                "every sample to be judged by itself",
                f"{how} there is {largest_change(found, wanted)} at exit {m}",
            )


def _later_exits_unseen(specimen: AnySpecimen) -> None:
    logits, fitted = specimen.logits, specimen.fitted
    for m in range(logits.shape[1] - 1):
        other = logits.clone()
        other[:, m + 1 :] = -3.0 * other[:, m + 1 :].flip(0)
        first, second = (specimen.ask_at(fitted, each, m) for each in (logits, other))
        alone = specimen.ask(fitted, logits[:, : m + 1].clone())
        text = f"exit {m} to say the same whatever the later exits say"
        expect(torch.equal(first, second), text, f"there is {largest_change(first, second)}")
        text = f"exit {m} to say the same where the later exits have not been run"
        expect(same(first, alone), text, f"there is {largest_change(first, alone)}")


def _mark_is_true(specimen: AnySpecimen) -> None:
    if specimen.component.reads_history:
        return
    for m in specimen.exits(specimen.logits)[1:]:
        other = specimen.logits.clone()
        other[:, :m] = torch.nan  # what was never computed
        first, second = (
            specimen.ask_at(specimen.fitted, each, m) for each in (specimen.logits, other)
        )
        expect(
            torch.equal(first, second),
            "what is marked current_exit_only to read nothing else",
            f"other earlier exits change what it says at exit {m}; take the mark off",
        )


def _macs_are_counts(specimen: AnySpecimen) -> None:
    classes = specimen.logits.shape[2]
    for m in specimen.exits(specimen.logits):
        count = specimen.fitted.macs(m, classes)
        kept = type(count) is int and count >= 0
        expect(kept, "a whole number of at least 0", f"got {count!r} at exit {m}")


def _files_keep_it(specimen: AnySpecimen) -> None:
    fitted = specimen.fitted
    description = json.loads(json.dumps(fitted.describe()))
    back = specimen.kind.restore(description, specimen.copy_of_fitted().state())
    name = type(fitted).__name__
    text = f"the class {name} back from its own description"
    expect(type(back) is type(fitted), text, "another class of that name is defined too")
    for m in specimen.exits(specimen.logits):
        first, second = (specimen.ask_at(each, specimen.logits, m) for each in (fitted, back))
        text = "the same, bit by bit, from what describe() and state() hold"
        expect(torch.equal(first, second), text, f"{largest_change(first, second)} at exit {m}")


def _policies_keep_it(specimen: AnySpecimen) -> None:
    ledgers, seed = specimen.ledgers, specimen.component.settings().get("seed", 0)
    policy, *_ = specimen.policy(specimen.component.clone()).fit_seeds(ledgers["held_out"], [seed])
    chosen = policy.tune(ledgers["val"], points=21).at(budget=0.6)
    reached = float(chosen.points.budgets[chosen.selected or 0])
    expect(reached <= 0.6 + 1e-9, "a val cost within the budget of 0.6", f"it is {reached:.4f}")
    with tempfile.TemporaryDirectory() as folder:
        loaded = Policy.load(chosen.save(folder))
        first, second = (each.decide(ledgers["test"]) for each in (chosen, loaded))
    differ = int((first != second).sum())
    text = "a saved policy to decide as before, bit by bit"
    expect(differ == 0, text, f"{differ} of {len(first)} samples leave at another exit")


def _smallest_works(specimen: AnySpecimen) -> None:
    ledgers, fresh = smallest(), specimen.component.clone()
    try:
        specimen.fit(fresh, ledgers["held_out"])
    except ConfigError:
        return  # a setting asks for more classes or exits than there are, and says so
    policy = specimen.policy(fresh)
    found = replay(policy.answer, policy.scorer, ledgers["test"])
    kept = bool(found.scores[:, 0].isfinite().all() and found.losses.isfinite().all())
    expect(kept, "finite results", "some are not")


BASICS = [
    Promise[AnySpecimen]("it is of its kind", _is_of_its_kind, basic=True),
    Promise[AnySpecimen]("settings are plain values", _has_plain_settings, basic=True),
    Promise[AnySpecimen]("it can be fitted and asked", _runs, basic=True),
]
FITTING = [
    Promise[AnySpecimen]("fit returns self", _fit_returns_self, basic=True),
    Promise[AnySpecimen]("the constructor only stores", _constructor_only_stores),
    Promise[AnySpecimen]("what is learned is named", _learned_is_named),
    Promise[AnySpecimen]("fit changes nothing else", _fit_leaves_alone),
    Promise[AnySpecimen]("a fit is a function of data, settings and seed", _fit_repeats),
]
SAYING = [
    Promise[AnySpecimen]("macs are counts", _macs_are_counts),
    Promise[AnySpecimen]("the same samples give the same", _saying_repeats, basic=True),
    Promise[AnySpecimen]("nothing sees a later exit", _later_exits_unseen, basic=True),
    Promise[AnySpecimen]("samples are judged one by one", _rows_stand_alone),
    Promise[AnySpecimen]("a current_exit_only mark is true", _mark_is_true),
]
KEEPING = [
    Promise[AnySpecimen]("a description and a state are all there is", _files_keep_it, basic=True),
    Promise[AnySpecimen]("a saved policy decides as before", _policies_keep_it),
    Promise[AnySpecimen]("two classes, two exits and float16 are enough", _smallest_works),
]


def check_answer(answer: Answer) -> None:
    """Hold an answer against every promise that the library builds on.

    The answer itself is not changed: copies of it are fitted on made-up ledgers.

    Args:
        answer: An instance of your class, with the settings to examine.

    Raises:
        PromiseError: With each broken promise, what was expected, and what happened.

    Example:
        >>> from dataclasses import dataclass
        >>> from offramp import Answer, TemperatureScaling
        >>> check_answer(TemperatureScaling())
        >>> @dataclass
        ... class Centred(Answer):
        ...     def answer_at(self, logits):
        ...         return logits[:, -1] - logits[:, -1].mean(dim=0)  # over the batch
        >>> check_answer(Centred())
        Traceback (most recent call last):
        offramp.errors.PromiseError: Centred breaks the promise 'samples are judged one by one':
        expected every sample to be judged by itself; without the others there is a change of ...
    """
    hold(type(answer).__name__, ANSWER_PROMISES, AnswerSpecimen(answer))


def _answers_are_logits(specimen: AnswerSpecimen) -> None:
    logits = specimen.logits
    for m in specimen.exits(logits):
        said = specimen.ask_at(specimen.fitted, logits, m)
        expect(isinstance(said, Tensor), "a torch tensor", f"got {type(said).__name__}")
        shape = [len(logits), logits.shape[2]]
        found = list(said.shape)
        expect(found == shape, f"answer_at to give [n, K] = {shape}", f"got {found} at exit {m}")
        kept = said.is_floating_point() and bool(said.isfinite().all())
        expect(kept, "finite floating-point logits", f"got {said.dtype}, or some not finite")
    empty = specimen.ask_at(specimen.fitted, logits[:0], 0)
    expect(len(empty) == 0, "nothing for no samples", f"got {list(empty.shape)}")


def _all_at_once_is_one_by_one(specimen: AnswerSpecimen) -> None:
    logits, fitted = specimen.logits, specimen.fitted
    with torch.inference_mode():
        whole = fitted.answers(logits)
    for m in specimen.exits(logits):
        alone = specimen.ask(fitted, logits[:, : m + 1].clone())
        expect(
            same(whole[:, m], alone),
            "answers(logits) to be what answer_at gives, exit by exit",
            f"they differ at exit {m}: {largest_change(whole[:, m], alone)}",
        )


def _fits_on_held_out_only(specimen: AnswerSpecimen) -> None:
    val = specimen.ledgers["val"]
    try:
        specimen.component.clone().fit(val)
    except SplitError:
        specimen.component.clone().fit(val, allow_split="val")  # knowingly, it is taken
    else:
        text = "fit to refuse the split 'val' (override _fit, and fit asks for held_out)"
        expect(False, text, "it took it")


ANSWER_PROMISES: list[Promise[Any]] = [
    *BASICS,
    Promise("an answer is logits for every class", _answers_are_logits, basic=True),
    *FITTING,
    Promise("answers are fitted on held_out", _fits_on_held_out_only),
    *SAYING,
    Promise("offline and at work it says the same", _all_at_once_is_one_by_one),
    *KEEPING,
]


HUGE = 3e4  # the largest logits that float16 ledgers hold are twice that


def check_scorer(scorer: Scorer) -> None:
    """Hold a scorer against every promise that the library builds on.

    The scorer itself is not changed: copies of it are fitted on made-up ledgers.

    Args:
        scorer: An instance of your class, with the settings to examine.

    Raises:
        PromiseError: With each broken promise, what was expected, and what happened.

    Example:
        >>> from dataclasses import dataclass
        >>> from offramp import MaxProbability, Scorer
        >>> check_scorer(MaxProbability())
        >>> @dataclass
        ... class Ranked(Scorer):
        ...     def score_at(self, history):
        ...         return history.answer.amax(dim=1).argsort().argsort().float()
        >>> check_scorer(Ranked())
        Traceback (most recent call last):
        offramp.errors.PromiseError: Ranked breaks the promise 'samples are judged one by one':
        expected every sample to be judged by itself; without the others there is a change of ...
    """
    hold(type(scorer).__name__, SCORER_PROMISES, ScorerSpecimen(scorer))


def _scores_are_numbers(specimen: ScorerSpecimen) -> None:
    logits = specimen.logits
    for m in specimen.exits(logits):
        scores = specimen.ask_at(specimen.fitted, logits, m)
        expect(isinstance(scores, Tensor), "a torch tensor", f"got {type(scores).__name__}")
        found, wanted = list(scores.shape), [len(logits)]
        expect(found == wanted, f"one score per sample, {wanted}", f"got {found} at exit {m}")
        expect(scores.is_floating_point(), "floating-point scores", f"got {scores.dtype}")
    empty = specimen.ask_at(specimen.fitted, logits[:0], 0)
    expect(len(empty) == 0, "no scores for no samples", f"got {list(empty.shape)}")


def _scores_are_finite(specimen: ScorerSpecimen) -> None:
    logits = specimen.logits
    top = torch.zeros_like(logits)
    top[..., 0] = HUGE
    for what, inputs in (
        ("of ordinary samples", logits),
        ("where all classes are equal", torch.zeros_like(logits)),
        ("where an exit is as sure as float16 can say", top),
    ):
        for m in specimen.exits(inputs):
            scores = specimen.ask_at(specimen.fitted, inputs, m)
            bad = scores[~scores.isfinite()]
            text = "finite scores, since a threshold of +inf closes an exit for all of them"
            expect(not len(bad), text, f"{what} there is {bad[:1].tolist()} at exit {m}")


def _probabilities_are_shares(specimen: ScorerSpecimen) -> None:
    for m in specimen.exits(specimen.logits):
        scores = specimen.ask_at(specimen.fitted, specimen.logits, m)
        probability: Tensor | None = specimen.fitted.probability(scores)
        if probability is None:
            continue
        kept = probability.shape == scores.shape
        kept = kept and bool(((probability >= 0) & (probability <= 1)).all())
        text = "probability(scores) to be None, or to lie in [0, 1] for each score"
        expect(kept, text, f"got values from {probability.min():.4g} to {probability.max():.4g}")


def _seeds_give_scorers(specimen: ScorerSpecimen) -> None:
    held_out = specimen.ledgers["held_out"]
    history = History(held_out.logits, held_out.logits)
    made = specimen.component.fit_seeds(history, held_out.labels, held_out.costs, [0, 1])
    wanted = 2 if "seed" in specimen.component.settings() else 1
    expect(
        len(made) == wanted and all(each.is_fitted for each in made),
        f"fit_seeds to give {wanted} fitted scorers for two seeds (one where there is no `seed`)",
        f"got {len(made)}, of which {sum(each.is_fitted for each in made)} are fitted",
    )
    seeds = [each.settings().get("seed") for each in made]
    expect(wanted == 1 or seeds == [0, 1], "scorers that know their seeds", f"got {seeds}")


SCORER_PROMISES: list[Promise[Any]] = [
    *BASICS,
    Promise("there is one score per sample", _scores_are_numbers, basic=True),
    Promise("scores are finite", _scores_are_finite),
    *FITTING,
    Promise("every seed gives a scorer", _seeds_give_scorers),
    *SAYING,
    Promise("a probability is one", _probabilities_are_shares),
    *KEEPING,
]
