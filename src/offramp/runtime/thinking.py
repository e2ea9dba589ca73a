"""A policy that watches a chain of thought, and stops it: in `transformers`, or over a stream.

After fixed numbers of tokens the model is asked for its answer as it stands. Shares of a length
that nobody knows yet could not be used on a new chain. The tokens of the questions themselves are
charged, too.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from offramp import check
from offramp.errors import ConfigError
from offramp.ledger.answers import Normalise
from offramp.policy import Policy

if TYPE_CHECKING:
    from torch import Tensor


class Look(NamedTuple):
    """The answer as it stood after so many tokens."""

    answer: Any
    confidence: float
    cost: int  # in tokens, with those of all looks so far


class Thought:
    """One chain of thought under watch.

    Args:
        policy: Fitted on a ledger with a stage for each number in `at`, at an operating point.
            None: nothing is stopped, and the looks make such a ledger.
        at: After how many tokens the answer is asked for.
        look_tokens: What asking for the answer costs each time.
        normalise: Brings an answer into the form that is compared.

    Attributes:
        looks: So far.
        tokens: Of the chain so far.
        text: Of the chain so far, where it comes as text.
        stopped: Whether the policy has stopped it.
        why: See `Session.why`; None where the chain has ended by itself.

    Example:
        >>> thought = Thought(None, at=[8, 16], look_tokens=2)
        >>> [thought.due(tokens) for tokens in (7, 8)]
        [False, True]
        >>> thought.look("4", 0.7), thought.due(9), thought.looks
        (False, False, [Look(answer='4', confidence=0.7, cost=10)])
    """

    def __init__(
        self,
        policy: Policy | None,
        at: Sequence[int],
        look_tokens: int = 0,
        normalise: Normalise | None = None,
    ) -> None:
        check.whole("look_tokens", look_tokens)
        if not at or sorted(set(at)) != list(at) or at[0] < 0:
            raise ConfigError(f"`at` must be growing numbers of tokens, got {list(at)}")
        if policy is not None:
            if policy.exits[-1] >= len(at):
                raise ConfigError(
                    f"this policy was fitted for stage {policy.exits[-1]}, and `at` has "
                    f"{len(at)} numbers: give those of its ledger"
                )
            at = [at[stage] for stage in policy.exits]
        self._session = None if policy is None else policy.start(normalise=normalise)
        self._at, self._look_tokens = tuple(at), look_tokens
        self.looks: list[Look] = []
        self.tokens, self.text, self.stopped = 0, "", False

    def due(self, tokens: int) -> bool:
        """Whether to ask for the answer, after so many tokens."""
        if self.stopped:
            return False
        self.tokens = tokens
        return len(self.looks) < len(self._at) and tokens >= self._at[len(self.looks)]

    def look(self, answer: Any, confidence: float) -> bool:  # noqa: ANN401
        """Take in the answer as it stands, and say whether to stop."""
        cost = self.tokens + self._look_tokens * (len(self.looks) + 1)
        self.looks.append(Look(answer, confidence, cost))
        if self._session is not None:
            self.stopped = self._session.observe(answer, confidence, cost)
        return self.stopped

    @property
    def answer(self) -> Any:  # noqa: ANN401
        """What to answer now; None before the first look."""
        if self._session is None or not self.looks:
            return self.looks[-1].answer if self.looks else None
        return self._session.answer

    @property
    def cost(self) -> int:
        """The tokens so far, with those of the looks."""
        return self.tokens + self._look_tokens * len(self.looks)

    @property
    def why(self) -> str | None:
        """Why the policy stopped it."""
        return None if self._session is None else self._session.why


class StopThinking:
    """A `StoppingCriteria` of `transformers`: `model.generate(..., stopping_criteria=[this])`.

    Args:
        policy: See `Thought`, as for `at`, `look_tokens` and `normalise`.
        at: After how many new tokens the answer is asked for.
        ask: Takes the tokens so far `[length]` and returns `(answer, confidence)`; see
            `answer_among`.
        prompt_tokens: Length of the prompt.
        look_tokens: What asking costs each time.
        normalise: Brings an answer into the form that is compared.

    Attributes:
        thoughts: Of each row of the batch. Make another one of these for the next batch.
    """

    def __init__(
        self,
        policy: Policy | None,
        at: Sequence[int],
        ask: Callable[["Tensor"], tuple[Any, float]],
        prompt_tokens: int,
        look_tokens: int = 0,
        normalise: Normalise | None = None,
    ) -> None:
        self._made = policy, at, look_tokens, normalise
        self._ask, self._prompt_tokens = ask, prompt_tokens
        Thought(*self._made)  # mistakes show here
        self.thoughts: list[Thought] = []

    def __call__(
        self,
        input_ids: "Tensor",
        scores: Any = None,  # noqa: ANN401 - as `generate` calls it
        **_: object,
    ) -> "Tensor":
        """Whether each chain is to end, bool `[n]`."""
        import torch

        if not self.thoughts:
            self.thoughts = [Thought(*self._made) for _ in input_ids]
        tokens = input_ids.shape[1] - self._prompt_tokens
        for thought, row in zip(self.thoughts, input_ids, strict=True):
            if thought.due(tokens):
                thought.look(*self._ask(row))
        stopped = [thought.stopped for thought in self.thoughts]
        return torch.tensor(stopped, device=input_ids.device)


def answer_among(
    model: Any,  # noqa: ANN401 - a causal language model of transformers
    suffix: "Tensor",
    options: "Tensor",
    answers: Sequence[Any],
) -> Callable[["Tensor"], tuple[Any, float]]:
    """Asks a model of `transformers` which of several tokens comes next, after a suffix.

    The tokens so far are read again, without the cache of `generate`: a look takes as long as
    reading a prompt of that length.

    Args:
        model: With a language-modelling head.
        suffix: `[s]` tokens, such as those of "The answer is".
        options: `[k]`, the first token of each answer.
        answers: What the options mean.
    """
    import torch

    def ask(tokens: "Tensor") -> tuple[Any, float]:
        with torch.inference_mode():
            whole = torch.cat([tokens, suffix.to(tokens)])[None]
            logits = model(whole).logits[0, -1]
        probs = logits.float()[options.to(logits.device)].softmax(0)
        best = int(probs.argmax())
        return answers[best], float(probs[best])

    return ask


def think(
    stream: Iterable[Any],
    thought: Thought,
    ask: Callable[[str], tuple[Any, float]],
) -> Thought:
    """Follow a stream of an OpenAI-style API, and close it as soon as the policy stops it.

    Args:
        stream: What `client.chat.completions.create(..., stream=True)` returns. A chunk with text
            counts as a token, as most servers send them.
        thought: With the policy.
        ask: Takes the text so far and returns `(answer, confidence)`, by another short request.
    """
    try:
        for chunk in stream:
            if _is_due(thought, chunk) and thought.look(*ask(thought.text)):
                break
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()
    return thought


async def athink(
    stream: AsyncIterator[Any],
    thought: Thought,
    ask: Callable[[str], Awaitable[tuple[Any, float]]],
) -> Thought:
    """The same as `think`, with an async client."""
    try:
        async for chunk in stream:
            if _is_due(thought, chunk) and thought.look(*await ask(thought.text)):
                break
    finally:
        close = getattr(stream, "close", None) or getattr(stream, "aclose", None)
        if close is not None:
            await close()
    return thought


def _is_due(thought: Thought, chunk: Any) -> bool:  # noqa: ANN401
    """Take in a chunk, and say whether the answer is to be asked for."""
    if not chunk.choices:
        return False
    delta = chunk.choices[0].delta
    # Servers call the thinking `reasoning_content`, or leave it in the content.
    piece = getattr(delta, "reasoning_content", None) or delta.content
    if not piece:
        return False
    thought.text += piece
    return thought.due(thought.tokens + 1)
