"""The promises that answers and scorers share."""

import copy
import json
import tempfile

import torch
from torch import Tensor

from offramp.errors import ConfigError
from offramp.policy import Policy
from offramp.replay import replay
from offramp.testing.promises import Promises, expect
from offramp.testing.under_test import ComponentUnderTest, smallest_ledgers

TOLERANCE = 1e-4  # relative: float32 sums in another order may differ by as much
SHARED = Promises()


def close(one: Tensor, two: Tensor) -> bool:
    """Whether two results agree up to the rounding of float32 sums."""
    return one.shape == two.shape and torch.allclose(one, two, rtol=TOLERANCE, atol=TOLERANCE)


def largest_change(one: Tensor, two: Tensor) -> str:
    """How far two results are apart, as text."""
    if one.shape != two.shape:
        return f"shapes {list(one.shape)} and {list(two.shape)}"
    return f"a change of up to {(one.double() - two.double()).abs().max().item():.4g}"


@SHARED.add("it is an instance of its base class", basic=True)
def _is_an_instance(tested: ComponentUnderTest) -> None:
    base = f"offramp.{tested.base.__name__}"
    if isinstance(tested.component, type):
        name = tested.component.__name__
        expect(False, f"an instance, {name}(...)", f"got the class {name} itself")
    found = type(tested.component).__name__
    expect(isinstance(tested.component, tested.base), f"a subclass of {base}", f"got {found}")


@SHARED.add("settings are plain values", basic=True)
def _has_plain_settings(tested: ComponentUnderTest) -> None:
    settings = tested.component.settings()
    try:
        back = json.loads(json.dumps(settings))
    except (TypeError, ValueError) as error:
        expect(False, "settings that JSON can store", f"it cannot: {error}")
    for name, value in settings.items():
        text = "settings that JSON restores unchanged (a list, for example, but not a tuple)"
        expect(back[name] == value, text, f"`{name}` was {value!r} and became {back[name]!r}")


@SHARED.add("it can be fitted and run", basic=True)
def _runs(tested: ComponentUnderTest) -> None:
    for exit_index in tested.exits:
        tested.run(tested.logits, exit_index)


@SHARED.add("fit returns self", basic=True)
def _fit_returns_self(tested: ComponentUnderTest) -> None:
    kept = tested.fitted is tested.returned
    expect(
        kept, "fit to return the object itself", f"it returned {type(tested.returned).__name__}"
    )


@SHARED.add("the constructor only stores its arguments")
def _constructor_only_stores(tested: ComponentUnderTest) -> None:
    component = tested.component
    fresh, settings = component.clone(), component.settings()
    for name, value in fresh.settings().items():
        text = "a copy with the same settings"
        expect(value == settings[name], text, f"`{name}` was {settings[name]!r} and is {value!r}")
    extra = [name for name in vars(fresh) if name not in settings and name[0] != "_"]
    expect(not extra, "only settings before fit", f"found `{', '.join(extra)}`")


@SHARED.add("`learned` names everything that fit learns")
def _learned_is_complete(tested: ComponentUnderTest) -> None:
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


@SHARED.add("fit changes nothing else")
def _fit_leaves_alone(tested: ComponentUnderTest) -> None:
    changed = ", ".join(tested.changed)
    expect(not changed, "unchanged settings after fit", f"`{changed}` changed")
    expect(tested.data_kept, "unchanged logits and labels", "fit changed them in place")


@SHARED.add("fit depends only on data, settings and seed")
def _fit_repeats(tested: ComponentUnderTest) -> None:
    first, second = tested.fitted.state(), tested.fit_again().state()
    for name, value in first.items():
        expect(
            torch.equal(value, second[name]),
            "bitwise the same fit from the same data and settings, whatever the global random "
            "state (draw from torch.Generator().manual_seed(self.seed))",
            f"two fits differ in `{name}`: {largest_change(value, second[name])}",
        )


@SHARED.add("macs are counts")
def _macs_are_counts(tested: ComponentUnderTest) -> None:
    classes = tested.logits.shape[2]
    for exit_index in tested.exits:
        count = tested.fitted.macs(exit_index, classes)
        kept = type(count) is int and count >= 0
        expect(kept, "an integer of at least 0", f"got {count!r} at exit {exit_index}")


@SHARED.add("the same samples give the same result", basic=True)
def _results_repeat(tested: ComponentUnderTest) -> None:
    for exit_index in tested.exits:
        first, second = (tested.run(tested.logits, exit_index) for _ in range(2))
        text = "bitwise the same result for the same samples every time"
        expect(
            torch.equal(first, second),
            text,
            f"{largest_change(first, second)} at exit {exit_index}",
        )


@SHARED.add("nothing sees a later exit", basic=True)
def _later_exits_unseen(tested: ComponentUnderTest) -> None:
    logits = tested.logits
    for exit_index in range(logits.shape[1] - 1):
        other = logits.clone()
        other[:, exit_index + 1 :] = -3.0 * other[:, exit_index + 1 :].flip(0)
        first, second = (tested.run(each, exit_index) for each in (logits, other))
        alone = tested.run(logits[:, : exit_index + 1].clone(), exit_index)
        text = f"the result at exit {exit_index} not to depend on later exits"
        expect(torch.equal(first, second), text, f"there is {largest_change(first, second)}")
        text = f"the same result at exit {exit_index} when later exits have not run"
        expect(close(first, alone), text, f"there is {largest_change(first, alone)}")


@SHARED.add("samples are independent")
def _samples_are_independent(tested: ComponentUnderTest) -> None:
    logits = tested.logits
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(0))
    for exit_index in tested.exits:
        whole = tested.run(logits, exit_index)
        others = {
            "in another order": (tested.run(logits[order], exit_index), whole[order]),
            "alone": (tested.run(logits[:1], exit_index), whole[:1]),
            "in a smaller batch": (tested.run(logits[3:8], exit_index), whole[3:8]),
        }
        for how, (found, wanted) in others.items():
            expect(
                close(found, wanted),
                "the result of a sample not to depend on the other samples",
                f"{how}, there is {largest_change(found, wanted)} at exit {exit_index}",
            )


@SHARED.add("current_exit_only is true where it is set")
def _current_exit_only_is_true(tested: ComponentUnderTest) -> None:
    if tested.component.reads_history:
        return
    for exit_index in tested.exits[1:]:
        other = tested.logits.clone()
        other[:, :exit_index] = torch.nan  # never computed
        first, second = (tested.run(each, exit_index) for each in (tested.logits, other))
        expect(
            torch.equal(first, second),
            "what is marked current_exit_only to read only the current exit",
            f"earlier exits change the result at exit {exit_index}; remove the mark",
        )


@SHARED.add("describe() and state() hold everything", basic=True)
def _files_restore_it(tested: ComponentUnderTest) -> None:
    fitted = tested.fitted
    description = json.loads(json.dumps(fitted.describe()))
    back = tested.base.restore(description, copy.deepcopy(fitted).state())
    name = type(fitted).__name__
    text = f"its description to restore the class {name}"
    expect(type(back) is type(fitted), text, "another class of that name exists")
    for exit_index in tested.exits:
        first, second = (tested.run(tested.logits, exit_index, each) for each in (fitted, back))
        text = "bitwise the same results after restoring describe() and state()"
        expect(
            torch.equal(first, second),
            text,
            f"{largest_change(first, second)} at exit {exit_index}",
        )


@SHARED.add("a saved policy decides as before")
def _policies_restore_it(tested: ComponentUnderTest) -> None:
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


@SHARED.add("it works with two classes, two exits and float16")
def _smallest_works(tested: ComponentUnderTest) -> None:
    ledgers, fresh = smallest_ledgers(), tested.component.clone()
    try:
        tested.fit(fresh, ledgers["held_out"])
    except ConfigError:
        return  # a setting needs more classes or exits than there are, and the error says so
    policy = tested.policy(fresh)
    found = replay(policy.answer, policy.scorer, ledgers["test"])
    kept = bool(found.scores[:, 0].isfinite().all() and found.losses.isfinite().all())
    expect(kept, "finite results", "some are not")
