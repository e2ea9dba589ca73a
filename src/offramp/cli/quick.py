"""The command `quick`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from offramp.cli.console import out
from offramp.cli.options import DataOptions, network_in, option_of
from offramp.cli.settings import split_names
from offramp.errors import ConfigError
from offramp.registry import BUILDERS, HEADS
from offramp.run_folder import RunFolder
from offramp.timing.config import Clock


def quick_command(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    data: DataOptions,
    exits: str = "auto",
    head: Annotated[str | None, option_of(HEADS)] = None,
    epochs: int = 20,
    max_drop: float = 0.005,
    runtime: str | None = None,
    batch_size: int = 1,
    threads: int = 1,
    seconds: float = 10.0,
    clock: Clock = "wall",
    folder: Annotated[Path, typer.Option("--out")] = Path("runs/quick"),
) -> None:
    """Put exits on a trained model, train their heads, and measure the speed-up.

    The whole way in one command: attach, train the heads, record, profile, auto, bench and export.
    The weights of the model stay as they are. The same command resumes an interrupted run. It is
    a script to copy from: offramp/speed_up.py.

    Args:
        model: Pretrained model, as attach takes it, with as many classes as the data; or the
            folder of a run or of a saved network, whose exits are trained.
        exits: Place of the exits: auto for a few by the seconds that blocks take, every-block, a
            number, or comma-separated names of modules.
        head: Head of each exit. Default: what fits the network.
        epochs: Epochs in which the heads are trained.
        max_drop: Accuracy that may be lost on val, 0.01 for a point.
        runtime: Runtime, torch or onnx. Default: ONNX Runtime, where it is installed.
        batch_size: Samples per batch in use.
        threads: Threads of the runtime.
        seconds: Approximate time to measure the profile, and the candidates.
        clock: Clock to time by; process counts the processor's seconds of this process, for
            machines that others use.
        folder: Folder for everything that is made.
    """
    is_saved = RunFolder(model).has_network
    source = data.source(Path(model))
    if source is None:
        raise ConfigError("give --data: what was the model trained on?")
    if not is_saved and source.tokenizer is None and model not in BUILDERS:
        source = replace(source, tokenizer=model)
    from offramp.speed_up import HEADS as TRAINED
    from offramp.speed_up import QuickConfig, quick

    where: str | int | list[str] = exits
    if exits not in ("every-block", "auto"):
        where = int(exits) if exits.isdigit() else split_names(exits)
    config = QuickConfig(
        *(where, head, max_drop, runtime, batch_size, threads, seconds, clock),
        train=replace(TRAINED, epochs=epochs),
    )
    found = quick(network_in(Path(model)) if is_saved else model, source.load(), folder, config)
    out.print(str(found))
    out.print(f"written to {found.folder}/: policy, bench, export")
