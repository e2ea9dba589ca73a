"""The promises of scorers."""

import torch
from torch import Tensor

from offramp.metrics import eefp
from offramp.scorers import History, Scorer
from offramp.testing.components import SHARED, close, largest_change
from offramp.testing.promises import Promises, check_promises, expect
from offramp.testing.under_test import ScorerUnderTest, easy_and_hard

OWN = Promises()
HUGE = 3e4  # about half of the largest float16 number
CLEAR = 0.8  # AUROC, where there is hardly a doubt
ROUNDING = 0.01  # of a score, where rounded logits nearly cancel


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
        ...         return history.log_odds.argsort().argsort().float()
        >>> check_scorer(Ranked())
        Traceback (most recent call last):
        offramp.errors.PromiseError: Ranked breaks the promise 'samples are independent':
        expected the result of a sample not to depend on the other samples; alone, there is ...
    """
    check_promises(type(scorer).__name__, [*SHARED, *OWN], ScorerUnderTest(scorer))


@OWN.add("there is one score per sample", basic=True)
def _scores_are_numbers(tested: ScorerUnderTest) -> None:
    logits = tested.logits
    for exit_index in tested.exits:
        scores = tested.run(logits, exit_index)
        expect(isinstance(scores, Tensor), "a torch tensor", f"got {type(scores).__name__}")
        found, wanted = list(scores.shape), [len(logits)]
        expect(
            found == wanted, f"one score per sample, {wanted}", f"got {found} at exit {exit_index}"
        )
        expect(scores.is_floating_point(), "floating-point scores", f"got {scores.dtype}")
    empty = tested.run(logits[:0], 0)
    expect(len(empty) == 0, "no scores for no samples", f"got {list(empty.shape)}")


@OWN.add("scores are finite")
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
            scores = tested.run(inputs, exit_index)
            bad = scores[~scores.isfinite()]
            text = "finite scores, since a threshold of +inf closes an exit for every sample"
            expect(not len(bad), text, f"{where}, got {bad[:1].tolist()} at exit {exit_index}")


@OWN.add("every seed gives a scorer")
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


@OWN.add("at_exit() agrees with score_at()")
def _prepared_scores_agree(tested: ScorerUnderTest) -> None:
    logits, fitted = tested.logits, tested.fitted
    for exit_index in tested.exits:
        scores = tested.run(logits, exit_index)
        history = History(logits, 0.5 * logits).until(exit_index)
        with torch.inference_mode():
            prepared = fitted.at_exit(exit_index, logits.shape[2])(history)
        expect(
            torch.equal(prepared, scores),
            "at_exit(m, K)(history) to return what score_at(history) returns, to the last bit",
            f"they differ at exit {exit_index}: {largest_change(scores, prepared)}",
        )


@OWN.add("probability() returns probabilities")
def _probabilities_are_valid(tested: ScorerUnderTest) -> None:
    for exit_index in tested.exits:
        scores = tested.run(tested.logits, exit_index)
        probability: Tensor | None = tested.fitted.probability(scores)
        if probability is None:
            continue
        kept = probability.shape == scores.shape
        kept = kept and bool(((probability >= 0) & (probability <= 1)).all())
        text = "probability(scores) to be None, or to lie in [0, 1] for each score"
        expect(kept, text, f"got values from {probability.min():.4g} to {probability.max():.4g}")


@OWN.add("higher scores speak for stopping")
def _higher_is_better(tested: ScorerUnderTest) -> None:
    fresh = tested.component.clone()
    tested.fit(fresh, easy_and_hard(seed=0)[0])
    test, easy = easy_and_hard(seed=1)
    for exit_index in tested.exits[1:]:  # at the first exit there is no history yet
        scores = fresh.score_at(test.history().until(exit_index))
        auroc = float(eefp(scores[:, None], easy[:, None])[0])
        expect(
            auroc >= CLEAR,
            "samples that are right and sure at every exit to score higher than others that are "
            "unsure and change their answer at every exit",
            f"at exit {exit_index}, {auroc:.0%} of the pairs do: is the sign wrong?",
        )


@OWN.add("scores do not saturate")
def _scores_stay_apart(tested: ScorerUnderTest) -> None:
    sure = torch.zeros_like(tested.logits)
    sure[..., 0] = torch.linspace(40, 160, len(sure))[:, None]
    for exit_index in tested.exits:
        usual, distinct = (
            len(tested.run(logits, exit_index).unique()) for logits in (tested.logits, sure)
        )
        # A scorer that counts has few scores for any samples.
        expect(
            usual <= len(sure) / 2 or distinct >= 0.9 * len(sure),
            "scores that tell very sure samples apart (take history.log_odds or a logarithm: "
            "in float32, their probabilities are exactly 1)",
            f"{len(sure)} samples have {distinct} different scores at exit {exit_index}",
        )


@OWN.add("scores are of what would be answered")
def _scores_follow_the_answers(tested: ScorerUnderTest) -> None:
    held_out, others = tested.ledgers["held_out"], tested.logits.flip(0)
    text = "score_at to look at history.answers, and not at history.logits"
    for exit_index in tested.exits:
        with torch.inference_mode():
            history = History(others, 0.5 * tested.logits).until(exit_index)
            scores = tested.fitted.score_at(history)
        same = close(scores, tested.run(tested.logits, exit_index))
        expect(same, text, f"other logits before the answer change scores at exit {exit_index}")
    if not tested.component.learns:
        return
    found = []
    for logits in (held_out.logits, held_out.logits.flip(0)):
        fresh = tested.component.clone()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            tested.fit(fresh, held_out, logits)
        found.append(fresh.state())
    text = "fit to look at history.answers, and not at history.logits"
    for name, value in found[0].items():
        same = close(value, found[1][name])
        expect(same, text, f"other logits before the answer change `{name}`")


@OWN.add("a constant added to all logits changes nothing")
def _constants_do_not_matter(tested: ScorerUnderTest) -> None:
    generator = torch.Generator().manual_seed(0)
    shift = 8 * torch.randn(*tested.logits.shape[:2], 1, generator=generator)
    for exit_index in tested.exits:
        first, second = (
            tested.run(logits, exit_index) for logits in (tested.logits, tested.logits + shift)
        )
        expect(
            torch.allclose(first, second, rtol=ROUNDING, atol=ROUNDING),
            "scores of probabilities, as in history.log_probs: logits mean the same with a "
            "constant added to those of an exit, and answers leave it open",
            f"there is {largest_change(first, second)} at exit {exit_index}",
        )
