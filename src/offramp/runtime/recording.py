"""All models of a cascade asked about all items: their responses as JSON lines, and as a ledger.

A line is one response. Lines are appended as responses come, so that what was paid for is never
asked for again: a recording that was interrupted goes on where it stopped.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, TextIO

import msgspec
import numpy as np

from offramp.arrays import Array, as_lists
from offramp.batch_times import BatchTimes
from offramp.costs import Costs
from offramp.errors import FileFormatError, LedgerError, LedgerWarning
from offramp.files import plain
from offramp.runtime.calls import Calls, unknown_cost
from offramp.runtime.cascade_run import Traffic, Visit
from offramp.runtime.members import Member, Response, picked

Table = list[list[Response]]  # [N, M]
BLANK: dict[str, Any] = plain(vars(Response()))  # what a line leaves out


class Recording(Traffic):
    """All stages are asked about all items, except for what is known already.

    Args:
        visits: All models.
        inputs: All items.
        calls: Of the models.
        most: The largest batch that a synchronous model gets.
        known: Responses by item and stage.
        keep: Called with the item, the stage and the response, as soon as it is there.
    """

    def __init__(
        self,
        visits: Sequence[Visit],
        inputs: Any,  # noqa: ANN401
        calls: Calls,
        most: int,
        known: Mapping[tuple[int, int], Response],
        keep: Callable[[int, int, Response], object] = lambda *_: None,
    ) -> None:
        super().__init__(visits, inputs, calls, most=most)
        stages = sum(len(visit.stages) for visit in visits)
        self._keep = keep
        self.table: list[list[Response | None]] = [
            [known.get((row, stage)) for stage in range(stages)] for row in range(self.samples)
        ]

    def needs(self, visit: Visit, row: int) -> bool:
        """Whether something of this model is not known."""
        return any(self.table[row][stage] is None for stage, _ in visit.stages)

    def take_in(self, stage: int, name: str, rows: list[int], found: Sequence[Response]) -> None:
        """Keep the responses, and write them down before anything else happens."""
        for row, response in zip(rows, found, strict=True):
            if self.table[row][stage] is None:
                self.table[row][stage] = response
                self._keep(row, stage, response)

    async def responses(self) -> Table:
        """Ask, and give the responses of all stages to all items."""
        await self.finish()
        return [[each for each in row if each is not None] for row in self.table]


class Journal:
    """Responses as JSON lines: one line for each, with the item and the model that it is of.

    Args:
        path: Of the file; it is made where there is none.
        inputs: The items.
        names: The model of each stage.
        ids: Of the items; their numbers by default.

    Attributes:
        known: The responses in the file, by item and stage; without those that have failed.
    """

    def __init__(
        self,
        path: str | Path,
        inputs: Any,  # noqa: ANN401
        names: Sequence[str],
        ids: Sequence[Any],
    ) -> None:
        self.path = Path(path)
        count = len(ids)
        self._keys = [
            f"{ids[row]}:{_digest(picked(inputs, np.array([row])))}" for row in range(count)
        ]
        # The model of each stage, and the number of the stage among those of its model.
        self._stages = [(name, list(names[:m]).count(name)) for m, name in enumerate(names)]
        self.known = self._read() if self.path.exists() else {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = self.path.open("a", encoding="utf-8")

    def add(self, row: int, stage: int, response: Response) -> None:
        """Append a response."""
        name, number = self._stages[stage]
        line = {"item": self._keys[row], "member": name, "sample": number}
        fields = plain(vars(response))
        line |= {key: value for key, value in fields.items() if value != BLANK[key]}
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self) -> dict[tuple[int, int], Response]:
        rows = {key: row for row, key in enumerate(self._keys)}
        stages = {stage: number for number, stage in enumerate(self._stages)}
        found: dict[tuple[int, int], Response] = {}
        text = self.path.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):  # killed in the middle of a line
            text = text[: text.rfind("\n") + 1]
            self.path.write_text(text, encoding="utf-8")
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                each = json.loads(line)
                key = (
                    rows.get(each.pop("item")),
                    stages.get((each.pop("member"), each.pop("sample"))),
                )
                response = _response(each)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise FileFormatError(
                    f"{self.path}, line {number} is no response of a model: give the file of a "
                    "recording, or the name of a new one"
                ) from None
            if None not in key and not response.error:
                found[key] = response  # type: ignore[index]
        return found


def _digest(item: Any) -> str:  # noqa: ANN401
    """Tells an item from others."""
    try:
        content = msgspec.json.encode(item, enc_hook=as_lists)
    except TypeError:
        content = repr(item).encode()
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def _response(fields: dict[str, Any]) -> Response:
    logits = fields.get("logits")
    if logits is not None:
        fields["logits"] = np.array(logits, np.float32)
    return Response(**{**fields, "features": tuple(fields.get("features", ()))})


def usable_rows(table: Table, names: Sequence[str], journal: Journal | None) -> list[int]:
    """The items that can stand in a ledger: the first model has answered.

    Raises:
        LedgerError: There are none, or another model has failed on all items.

    Warns:
        LedgerWarning: How many calls have failed for good, with the first reason.
    """
    kept = [row for row, stages in enumerate(table) if not stages[0].error]
    for stage, name in enumerate(names):
        failed = [row for row in range(len(table)) if table[row][stage].error]
        if failed and len(failed) == len(table):
            raise LedgerError(f"`{name}` failed on every sample: {table[0][stage].error}")
    failures = [
        (row, name, each.error)
        for row, stages in enumerate(table)
        for name, each in zip(names, stages, strict=True)
        if each.error
    ]
    if failures:
        row, name, error = failures[0]
        again = "" if journal is None else "; recording again asks for these alone"
        out = len(table) - len(kept)
        left_out = f", and {out} items without an answer of the first model are left out" * (
            out > 0
        )
        warnings.warn(
            f"{len(failures)} calls failed for good and are masked{left_out}: the first was "
            f"`{name}` on sample {row}: {error}{again}",
            LedgerWarning,
            stacklevel=4,
        )
    return kept


def with_billed(table: Table) -> Table:
    """The table in which a failure that was billed repeats the answer before, at its own cost.

    That is what a run makes of it. A failure that cost nothing is as if the item had ended there.
    """
    found: Table = []
    for row in table:
        carried: list[Response] = []
        for each in row:
            is_billed = bool(each.error and each.cost)
            carried.append(replace(carried[-1], cost=each.cost) if is_billed else each)
        found.append(carried)
    return found


def paid(table: Table, stated: Array) -> Array:
    """What every call has cost, `[N, M]`; NaN where that is not known.

    Args:
        table: The responses.
        stated: `[M]`, what the calls of each stage were stated to cost; NaN where they were not.
    """
    found = [
        [
            # What failed costs what was billed.
            (response.cost or 0.0) if response.error
            else cost if response.cost is None
            else response.cost
            for response, cost in zip(stages, stated.tolist(), strict=True)
        ]
        for stages in table
    ]  # fmt: skip
    return np.array(found, np.float64)


def confidences_of(table: Table) -> list[list[Any]] | None:
    """`[N, M]`, None where a call has failed; None where no model states any."""
    found = [[None if each.error else each.confidence for each in row] for row in table]
    return found if any(each is not None for row in found for each in row) else None


def features_of(table: Table) -> Any:  # noqa: ANN401
    """`[N, M, F]`, or None where there are none; zero where a call has failed."""
    widths = {len(each.features) for row in table for each in row if not each.error}
    if widths == {0}:
        return None
    if len(widths) > 1:
        raise LedgerError(f"all models must give as many features, got {sorted(widths)}")
    (width,) = widths
    return np.array([[(0.0,) * width if e.error else e.features for e in row] for row in table])


def logits_of(table: Table) -> Array | None:
    """`[N, M, K]`, if all models give logits of the same classes; a failure repeats the last."""
    sizes = {
        each.logits is not None and len(each.logits)
        for row in table
        for each in row
        if not each.error
    }
    if len(sizes) != 1 or False in sizes:
        return None
    found = []
    for row in table:
        known: list[Any] = []
        for each in row:
            known.append(known[-1] if each.error else each.logits)
        found.append(known)
    return np.array(found)


def costs_of(members: Sequence[Member], unit: str, table: Table) -> Costs | BatchTimes:
    """Of every stage and item; a call's own cost counts before the model's.

    Raises:
        LedgerError: The costs of a model are not known.
    """
    parts = [_stages_and_heads(member) for member in members]
    stages, heads = map(np.concatenate, zip(*parts, strict=True))  # [M]
    each = paid(table, heads)  # [N, M]
    names = [member.name for member in members for _ in range(member.stages)]
    for name, costs in zip(names, each.T, strict=True):
        if np.isnan(costs).any():
            raise unknown_cost(name)
    starts = tuple(accumulate(member.stages for member in members))[:-1]
    # The last model starts afresh, whatever was run before; of samples, all count.
    last = members[-1]
    whole = stages[-last.stages :].sum()
    if all(response.cost is None for row in table for response in row):
        reference = float(whole + heads[-last.samples :].sum())
        times = _batch_times(members, reference, starts)
        return times or Costs(stages, heads, reference, unit, starts)
    own = each[:, -last.samples :].sum(axis=1)
    answered = np.array([not row[-1].error for row in table])
    alone = whole + np.where(answered, own, own[answered].mean())
    return Costs(np.broadcast_to(stages, each.shape), each, alone, unit, starts)


def _stages_and_heads(member: Member) -> tuple[Array, Array]:
    """What its stages and heads cost, each `[M]`; NaN for heads whose costs are not known."""
    if member.costs is not None:
        return member.costs.stages, member.costs.heads
    nothing = np.zeros(member.stages)
    return nothing, nothing + np.nan


def _batch_times(
    members: Sequence[Member], reference: float, starts: tuple[int, ...]
) -> BatchTimes | None:
    """Of every stage as batches shrink, if that is known of all models."""
    times = [member.batch_times for member in members if member.batch_times is not None]
    if len(times) < len(members) or len({each.stages.shape[1] for each in times}) > 1:
        return None
    stages = np.concatenate([each.stages for each in times])
    heads = np.concatenate([each.heads for each in times])
    return BatchTimes(stages, heads, reference, starts=starts)
