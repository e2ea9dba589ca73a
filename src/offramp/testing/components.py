"""The promises of answers and scorers, most of which they share."""

import copy
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
from offramp.testing.promises import (
    AnswerUnderTest,
    ComponentUnderTest,
    Promise,
    ScorerUnderTest,
    check_promises,
    expect,
    smallest_ledgers,
)

AnyComponent = ComponentUnderTest[Any]

TOLERANCE = 1e-4  # relative: float32 sums in another order may differ by as much


def close(one: Tensor, two: Tensor) -> bool:
    """Whether two results agree up to the rounding of float32 sums."""
    return one.shape == two.shape and torch.allclose(one, two, rtol=TOLERANCE, atol=TOLERANCE)


def largest_change(one: Tensor, two: Tensor) -> str:
    """How far two results are apart, as text."""
    if one.shape != two.shape:
        return f"shapes {list(one.shape)} and {list(two.shape)}"
    return f"a change of up to {(one.double() - two.double()).abs().max().item():.4g}"


def _is_an_instance(tested: AnyComponent) -> None:
    base = f"offramp.{tested.base.__name__}"
    if isinstance(tested.component, type):
        name = tested.component.__name__
        expect(False, f"an instance, {name}(...)", f"got the class {name} itself")
    found = type(tested.component).__name__
    expect(isinstance(tested.component, tested.base), f"a subclass of {base}", f"got {found}")


def _has_plain_settings(tested: AnyComponent) -> None:
    settings = tested.component.settings()
    try:
        back = json.loads(json.dumps(settings))
    except (TypeError, ValueError) as error:
        expect(False, "settings that JSON can store", f"it cannot: {error}")
    for name, value in settings.items():
        text = "settings that JSON restores unchanged (a list, for example, but not a tuple)"
        expect(back[name] == value, text, f"`{name}` was {value!r} and became {back[name]!r}")


def _runs(tested: AnyComponent) -> None:
    for exit_index in tested.exits:
        tested.run_at(tested.fitted, tested.logits, exit_index)


def _constructor_only_stores(tested: AnyComponent) -> None:
    component = tested.component
    fresh, settings = component.clone(), component.settings()
    for name, value in fresh.settings().items():
        text = "a copy with the same settings"
        expect(value == settings[name], text, f"`{name}` was {settings[name]!r} and is {value!r}")
    extra = [name for name in vars(fresh) if name not in settings and name[0] != "_"]
    expect(not extra, "only settings before fit", f"found `{', '.join(extra)}`")


def _fit_returns_self(tested: AnyComponent) -> None:
    given = tested.first_fit.returned
    kept = given is tested.first_fit.component
    expect(kept, "fit to return the object itself", f"it returned {type(given).__name__}")


def _learned_is_complete(tested: AnyComponent) -> None:
    component, fitted = tested.component, tested.fitted
    names = component.learned
    wrong = [name for name in names if not name.endswith("_")]
    expect(not wrong, "learned names that end in `_`", f"`learned` has `{', '.join(wrong)}`")
    for name in names:
        value = getattr(fitted, name, None)
        text = f"fit to set `{name}`, which is in `learned`, to a tensor"
        expect(isinstance(value, Tensor), text, f"it is {type(value).__name__}")
    settings = component.settings()
    new = [name for name in vars(fitted) if name not in (*names, *settings) and name[0] != "_"]
    text = "`learned` to name everything that fit learns, which is what files store"
    expect(not new, text, f"fit also sets `{', '.join(new)}`")


def _fit_leaves_alone(tested: AnyComponent) -> None:
    first = tested.first_fit
    now = first.component.settings()
    changed = [name for name, value in first.settings.items() if value != now[name]]
    expect(not changed, "unchanged settings after fit", f"`{', '.join(changed)}` changed")
    expect(first.data_kept, "unchanged logits and labels", "fit changed them in place")


def _fit_repeats(tested: AnyComponent) -> None:
    first, second = tested.fitted.state(), tested.fit_again().state()
    for name, value in first.items():
        expect(
            torch.equal(value, second[name]),
            "bitwise the same fit from the same data and settings, whatever the global random "
            "state (draw from torch.Generator().manual_seed(self.seed))",
            f"two fits differ in `{name}`: {largest_change(value, second[name])}",
        )


def _results_repeat(tested: AnyComponent) -> None:
    for exit_index in tested.exits:
        first, second = (tested.run_at(tested.fitted, tested.logits, exit_index) for _ in range(2))
        text = "bitwise the same result for the same samples every time"
        expect(
            torch.equal(first, second),
            text,
            f"{largest_change(first, second)} at exit {exit_index}",
        )


def _samples_are_independent(tested: AnyComponent) -> None:
    logits, fitted = tested.logits, tested.fitted
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(0))
    for exit_index in tested.exits:
        whole = tested.run_at(fitted, logits, exit_index)
        others = {
            "in another order": (tested.run_at(fitted, logits[order], exit_index), whole[order]),
            "alone": (tested.run_at(fitted, logits[:1], exit_index), whole[:1]),
            "in a smaller batch": (tested.run_at(fitted, logits[3:8], exit_index), whole[3:8]),
        }
        for how, (found, wanted) in others.items():
            expect(
                close(found, wanted),
                "the result of a sample not to depend on the other samples",
                f"{how}, there is {largest_change(found, wanted)} at exit {exit_index}",
            )


def _later_exits_unseen(tested: AnyComponent) -> None:
    logits, fitted = tested.logits, tested.fitted
    for exit_index in range(logits.shape[1] - 1):
        other = logits.clone()
        other[:, exit_index + 1 :] = -3.0 * other[:, exit_index + 1 :].flip(0)
        first, second = (tested.run_at(fitted, each, exit_index) for each in (logits, other))
        alone = tested.run_at(fitted, logits[:, : exit_index + 1].clone(), exit_index)
        text = f"the result at exit {exit_index} not to depend on later exits"
        expect(torch.equal(first, second), text, f"there is {largest_change(first, second)}")
        text = f"the same result at exit {exit_index} when later exits have not run"
        expect(close(first, alone), text, f"there is {largest_change(first, alone)}")


def _current_exit_only_is_true(tested: AnyComponent) -> None:
    if tested.component.reads_history:
        return
    for exit_index in tested.exits[1:]:
        other = tested.logits.clone()
        other[:, :exit_index] = torch.nan  # never computed
        first, second = (
            tested.run_at(tested.fitted, each, exit_index) for each in (tested.logits, other)
        )
        expect(
            torch.equal(first, second),
            "what is marked current_exit_only to read only the current exit",
            f"earlier exits change the result at exit {exit_index}; remove the mark",
        )


def _macs_are_counts(tested: AnyComponent) -> None:
    classes = tested.logits.shape[2]
    for exit_index in tested.exits:
        count = tested.fitted.macs(exit_index, classes)
        kept = type(count) is int and count >= 0
        expect(kept, "an integer of at least 0", f"got {count!r} at exit {exit_index}")


def _files_restore_it(tested: AnyComponent) -> None:
    fitted = tested.fitted
    description = json.loads(json.dumps(fitted.describe()))
    back = tested.base.restore(description, copy.deepcopy(fitted).state())
    name = type(fitted).__name__
    text = f"its description to restore the class {name}"
    expect(type(back) is type(fitted), text, "another class of that name exists")
    for exit_index in tested.exits:
        first, second = (tested.run_at(each, tested.logits, exit_index) for each in (fitted, back))
        text = "bitwise the same results after restoring describe() and state()"
        expect(
            torch.equal(first, second),
            text,
            f"{largest_change(first, second)} at exit {exit_index}",
        )


def _policies_restore_it(tested: AnyComponent) -> None:
    ledgers, seed = tested.ledgers, tested.component.settings().get("seed", 0)
    policy, *_ = tested.policy(tested.component.clone()).fit_seeds(ledgers["held_out"], [seed])
    chosen = policy.tune(ledgers["val"], points=21).at(budget=0.6)
    reached = float(chosen.points.budgets[chosen.selected or 0])
    expect(reached <= 0.6 + 1e-9, "a val cost within the budget of 0.6", f"it is {reached:.4f}")
    with tempfile.TemporaryDirectory() as folder:
        loaded = Policy.load(chosen.save(folder))
        first, second = (each.decide(ledgers["test"]) for each in (chosen, loaded))
    differ = int((first != second).sum())
    text = "a saved policy to make bitwise the same decisions"
    expect(differ == 0, text, f"{differ} of {len(first)} samples stop at another exit")


def _smallest_works(tested: AnyComponent) -> None:
    ledgers, fresh = smallest_ledgers(), tested.component.clone()
    try:
        tested.fit(fresh, ledgers["held_out"])
    except ConfigError:
        return  # a setting needs more classes or exits than there are, and the error says so
    policy = tested.policy(fresh)
    found = replay(policy.answer, policy.scorer, ledgers["test"])
    kept = bool(found.scores[:, 0].isfinite().all() and found.losses.isfinite().all())
    expect(kept, "finite results", "some are not")


BASIC_PROMISES = [
    Promise[AnyComponent]("it is an instance of its base class", _is_an_instance, basic=True),
    Promise[AnyComponent]("settings are plain values", _has_plain_settings, basic=True),
    Promise[AnyComponent]("it can be fitted and run", _runs, basic=True),
]
FIT_PROMISES = [
    Promise[AnyComponent]("fit returns self", _fit_returns_self, basic=True),
    Promise[AnyComponent]("the constructor only stores its arguments", _constructor_only_stores),
    Promise[AnyComponent]("`learned` names everything that fit learns", _learned_is_complete),
    Promise[AnyComponent]("fit changes nothing else", _fit_leaves_alone),
    Promise[AnyComponent]("fit depends only on data, settings and seed", _fit_repeats),
]
RESULT_PROMISES = [
    Promise[AnyComponent]("macs are counts", _macs_are_counts),
    Promise[AnyComponent]("the same samples give the same result", _results_repeat, basic=True),
    Promise[AnyComponent]("nothing sees a later exit", _later_exits_unseen, basic=True),
    Promise[AnyComponent]("samples are independent", _samples_are_independent),
    Promise[AnyComponent]("current_exit_only is true where it is set", _current_exit_only_is_true),
]
FILE_PROMISES = [
    Promise[AnyComponent]("describe() and state() hold everything", _files_restore_it, basic=True),
    Promise[AnyComponent]("a saved policy decides as before", _policies_restore_it),
    Promise[AnyComponent]("it works with two classes, two exits and float16", _smallest_works),
]


def check_answer(answer: Answer) -> None:
    """Check an answer against every promise that the library relies on.

    The answer itself does not change: copies of it are fitted on synthetic ledgers.

    Args:
        answer: An instance of your class, with the settings to check.

    Raises:
        PromiseError: With each broken promise, what was expected and what happened.

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
        offramp.errors.PromiseError: Centred breaks the promise 'samples are independent':
        expected the result of a sample not to depend on the other samples; alone, there is ...
    """
    check_promises(type(answer).__name__, ANSWER_PROMISES, AnswerUnderTest(answer))


def _answers_are_logits(tested: AnswerUnderTest) -> None:
    logits = tested.logits
    for exit_index in tested.exits:
        answered = tested.run_at(tested.fitted, logits, exit_index)
        expect(isinstance(answered, Tensor), "a torch tensor", f"got {type(answered).__name__}")
        shape = [len(logits), logits.shape[2]]
        found = list(answered.shape)
        expect(
            found == shape,
            f"answer_at to return [n, K] = {shape}",
            f"got {found} at exit {exit_index}",
        )
        kept = answered.is_floating_point() and bool(answered.isfinite().all())
        expect(
            kept, "finite floating-point logits", f"got {answered.dtype}, or some are not finite"
        )
    empty = tested.run_at(tested.fitted, logits[:0], 0)
    expect(len(empty) == 0, "an empty result for no samples", f"got {list(empty.shape)}")


def _both_methods_agree(tested: AnswerUnderTest) -> None:
    logits, fitted = tested.logits, tested.fitted
    with torch.inference_mode():
        whole = fitted.answers(logits)
    for exit_index in tested.exits:
        alone = tested.run_at(fitted, logits[:, : exit_index + 1].clone(), exit_index)
        expect(
            close(whole[:, exit_index], alone),
            "answers(logits) to return what answer_at returns, exit by exit",
            f"they differ at exit {exit_index}: {largest_change(whole[:, exit_index], alone)}",
        )


def _fits_on_held_out_only(tested: AnswerUnderTest) -> None:
    val = tested.ledgers["val"]
    try:
        tested.component.clone().fit(val)
    except SplitError:
        tested.component.clone().fit(val, allow_split="val")  # allowed if requested
    else:
        text = "fit to refuse the split 'val' (override _fit, so that fit checks the split)"
        expect(False, text, "it accepted it")


ANSWER_PROMISES: list[Promise[Any]] = [
    *BASIC_PROMISES,
    Promise("an answer returns logits for every class", _answers_are_logits, basic=True),
    *FIT_PROMISES,
    Promise("answers are fitted on held_out", _fits_on_held_out_only),
    *RESULT_PROMISES,
    Promise("answers() agrees with answer_at()", _both_methods_agree),
    *FILE_PROMISES,
]


HUGE = 3e4  # about half of the largest float16 number


def check_scorer(scorer: Scorer) -> None:
    """Check a scorer against every promise that the library relies on.

    The scorer itself does not change: copies of it are fitted on synthetic ledgers.

    Args:
        scorer: An instance of your class, with the settings to check.

    Raises:
        PromiseError: With each broken promise, what was expected and what happened.

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
        offramp.errors.PromiseError: Ranked breaks the promise 'samples are independent':
        expected the result of a sample not to depend on the other samples; alone, there is ...
    """
    check_promises(type(scorer).__name__, SCORER_PROMISES, ScorerUnderTest(scorer))


def _scores_are_numbers(tested: ScorerUnderTest) -> None:
    logits = tested.logits
    for exit_index in tested.exits:
        scores = tested.run_at(tested.fitted, logits, exit_index)
        expect(isinstance(scores, Tensor), "a torch tensor", f"got {type(scores).__name__}")
        found, wanted = list(scores.shape), [len(logits)]
        expect(
            found == wanted, f"one score per sample, {wanted}", f"got {found} at exit {exit_index}"
        )
        expect(scores.is_floating_point(), "floating-point scores", f"got {scores.dtype}")
    empty = tested.run_at(tested.fitted, logits[:0], 0)
    expect(len(empty) == 0, "no scores for no samples", f"got {list(empty.shape)}")


def _scores_are_finite(tested: ScorerUnderTest) -> None:
    logits = tested.logits
    top = torch.zeros_like(logits)
    top[..., 0] = HUGE
    for where, inputs in (
        ("for ordinary samples", logits),
        ("where all classes are equal", torch.zeros_like(logits)),
        ("where an exit is as confident as float16 allows", top),
    ):
        for exit_index in tested.exits:
            scores = tested.run_at(tested.fitted, inputs, exit_index)
            bad = scores[~scores.isfinite()]
            text = "finite scores, since a threshold of +inf closes an exit for every sample"
            expect(not len(bad), text, f"{where}, got {bad[:1].tolist()} at exit {exit_index}")


def _probabilities_are_valid(tested: ScorerUnderTest) -> None:
    for exit_index in tested.exits:
        scores = tested.run_at(tested.fitted, tested.logits, exit_index)
        probability: Tensor | None = tested.fitted.probability(scores)
        if probability is None:
            continue
        kept = probability.shape == scores.shape
        kept = kept and bool(((probability >= 0) & (probability <= 1)).all())
        text = "probability(scores) to be None, or to lie in [0, 1] for each score"
        expect(kept, text, f"got values from {probability.min():.4g} to {probability.max():.4g}")


def _seeds_give_scorers(tested: ScorerUnderTest) -> None:
    held_out = tested.ledgers["held_out"]
    history = History(held_out.logits, held_out.logits)
    made = tested.component.fit_seeds(history, held_out.labels, held_out.costs, [0, 1])
    wanted = 2 if "seed" in tested.component.settings() else 1
    expect(
        len(made) == wanted and all(each.is_fitted for each in made),
        f"fit_seeds to return {wanted} fitted scorers for two seeds (one if there is no `seed`)",
        f"got {len(made)}, of which {sum(each.is_fitted for each in made)} are fitted",
    )
    seeds = [each.settings().get("seed") for each in made]
    expect(
        wanted == 1 or seeds == [0, 1],
        "scorers with these seeds in their settings",
        f"got {seeds}",
    )


def _prepared_scores_agree(tested: ScorerUnderTest) -> None:
    logits, fitted = tested.logits, tested.fitted
    for exit_index in tested.exits:
        scores = tested.run_at(fitted, logits, exit_index)
        history = History(logits, 0.5 * logits).until(exit_index)
        with torch.inference_mode():
            prepared = fitted.at_exit(exit_index, logits.shape[2])(history)
        expect(
            torch.equal(prepared, scores),
            "at_exit(m, K)(history) to return what score_at(history) returns, to the last bit",
            f"they differ at exit {exit_index}: {largest_change(scores, prepared)}",
        )


SCORER_PROMISES: list[Promise[Any]] = [
    *BASIC_PROMISES,
    Promise("there is one score per sample", _scores_are_numbers, basic=True),
    Promise("scores are finite", _scores_are_finite),
    *FIT_PROMISES,
    Promise("every seed gives a scorer", _seeds_give_scorers),
    *RESULT_PROMISES,
    Promise("at_exit() agrees with score_at()", _prepared_scores_agree),
    Promise("probability() returns probabilities", _probabilities_are_valid),
    *FILE_PROMISES,
]
