"""The commands `export` and `serve`."""

import signal
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from offramp.cli.console import note, out
from offramp.cli.options import (
    Budget,
    DataOptions,
    NetworkPath,
    PolicyPath,
    load_policy,
    network_in,
)
from offramp.errors import ProcessError
from offramp.serving.config import ServeConfig


def export_command(
    network: NetworkPath,
    policy: PolicyPath,
    folder: Annotated[Path, typer.Option("--out")] = Path("export"),
    budget: Budget = None,
    all_points: Annotated[bool, typer.Option("--all-points")] = False,
    full: bool = True,
) -> None:
    r"""Write a network and its policy as ONNX graphs, from one open exit to the next.

    All stages from one open exit to the next, and the head of that exit, are one graph; exits
    that are closed at the budget disappear. Any batch size is taken. export.json lists the
    graphs, and the policy lies in a folder beside them. In Python, offramp.OnnxRunner(FOLDER) runs
    them without the PyTorch network; docs/reference/http-and-onnx.md describes inputs and outputs
    for other languages. Needs pip install 'offramp\[onnx]'.

    Args:
        folder: Folder of the export.
        all_points: Keep the exits that are open at any budget, so that the budget can be changed
            later.
        full: Write the network without exits as well, for comparison.
    """
    from offramp.onnx import export
    from offramp.serving.images import Reading

    loaded, chosen = network_in(network), load_policy(policy, budget)
    points: Literal["selected", "all"] = "all" if all_points else "selected"
    notes = asdict(Reading.of_run(loaded.inputs, network))
    export(loaded, chosen, folder, points=points, full=full, notes=notes)
    graphs = len(list(folder.glob("*.onnx")))
    out.print(f"{graphs} graphs and export.json written to {folder}/")


def serve_command(
    network: Annotated[Path, typer.Argument(metavar="NETWORK")],
    data: DataOptions,
    config: ServeConfig,
    policy: Annotated[Path | None, typer.Argument(metavar="POLICY")] = None,
    budget: Budget = None,
    class_names: Path | None = None,
    hold_budget: Annotated[bool, typer.Option("--hold-budget")] = False,
) -> None:
    r"""Answer requests over HTTP; every sample stops at its own exit.

    With a file of TOML or JSON that lists endpoints, such as cascade.toml, it is a gateway:
    /v1/chat/completions as OpenAI's API has it, answered by a cascade of them.

    POST /predict takes a PNG or JPEG, or JSON: {"image": BASE64}, {"inputs": NESTED LISTS} or, for
    text, {"text": TEXT} or {"input_ids": LIST}; an "id" is returned with the answer. The answer is
    JSON: class, name, confidence (the calibrated probability that it is right), likely_wrong, exit
    and cost. GET /health says whether the server is ready, and GET /metrics is for Prometheus.

    Requests that arrive together are answered in one batch, which every sample leaves at its own
    exit. Example: curl -H 'Content-Type: image/png' --data-binary @a.png 127.0.0.1:8000/predict

    Ctrl-C or SIGTERM: what was sent is answered, and the command returns 0. With several workers,
    uvicorn starts another process for each that ends.

    There is no encryption, and no key unless OFFRAMP_API_KEY is set (clients then send it as
    X-API-Key): put a proxy in front of a public server. With OFFRAMP_ADMIN_TOKEN set, PUT
    /admin/budget and POST /admin/reload change the budget and read the policy again. Needs
    pip install 'offramp\[serve]'.

    Args:
        network: Folder of a run, of a saved network, or of an export, which needs no POLICY; or
            the file of a gateway.
        policy: Folder of a policy.
        class_names: Text file with one class name per line.
        hold_budget: Keep the mean cost at the budget when inputs become harder or easier.
    """
    from offramp.serving import Model, serve

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    if network.suffix in (".toml", ".json"):
        _serve_gateway(network, config)
        return
    model = Model.of_run(
        network,
        policy,
        budget,
        data=data.data,
        domain=data.domain,
        class_names=class_names,
        tokenizer=data.tokenizer,
    )
    where = model.check_place(config.device, config.precision)

    def ready(address: str) -> None:
        note(f"serving on {where}, at {address}/predict; stop with Ctrl-C")

    try:
        serve(replace(model, hold_budget=hold_budget), config, ready=ready)
    except KeyboardInterrupt:  # before anything was answered
        pass
    except ProcessError as error:  # not the user's mistake: a supervisor should start it again
        note(f"offramp: {error}", style="red")
        raise typer.Exit(1) from None
    note("stopped")


def _serve_gateway(path: Path, config: ServeConfig) -> None:
    from offramp.serving import GatewayConfig, serve_gateway

    chosen = GatewayConfig.load(path)
    names = ", ".join(member.name for member in chosen.members)

    def ready(address: str) -> None:
        note(f"serving {names} at {address}/v1/chat/completions; stop with Ctrl-C")

    # The server answers what was sent, and raises the signal again.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        serve_gateway(chosen, config, ready)
    note("stopped")
