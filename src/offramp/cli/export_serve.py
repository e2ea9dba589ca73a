"""The sub-commands `export` and `serve`: parse, and one public call."""

import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from offramp.cli.console import err, out
from offramp.cli.options import (
    Budget,
    Device,
    Domain,
    NetworkPath,
    PolicyPath,
    Precision,
    TokenizerName,
    complete_data,
)
from offramp.cli.predict_bench import load_policy
from offramp.cli.train_record import load_network
from offramp.errors import ProcessError


def export_command(
    network: NetworkPath,
    policy: PolicyPath,
    folder: Annotated[Path, typer.Option("--out", help="Where to write.")] = Path("export"),
    budget: Budget = None,
    all_points: Annotated[
        bool,
        typer.Option(
            "--all-points",
            help="Keep the exits that are open at any budget, so that it can be changed later.",
        ),
    ] = False,
    full: Annotated[
        bool, typer.Option(help="Also write the network without exits, for comparison.")
    ] = True,
) -> None:
    r"""Write a network and its policy as ONNX graphs, from one open exit to the next.

    The stages up to an exit are one graph, and the exit (head, answer and scorer) is another;
    exits that are closed at the budget disappear. Any batch size is taken. export.json lists the
    graphs, with the thresholds. In Python, offramp.OnnxRunner(FOLDER) runs them without the
    PyTorch network; docs/serving.md describes inputs and outputs for other languages. Needs
    pip install 'offramp\[onnx]'.
    """
    from offramp.onnx import export
    from offramp.serving.images import Reading

    loaded, chosen = load_network(network), load_policy(policy, budget)
    points: Literal["selected", "all"] = "all" if all_points else "selected"
    notes = asdict(Reading.of_run(loaded.inputs, network))
    export(loaded, chosen, folder, points=points, full=full, notes=notes)
    graphs = len(list(folder.glob("*.onnx")))
    out.print(f"{graphs} graphs and export.json written to {folder}/", highlight=False)


def serve_command(
    network: Annotated[
        Path,
        typer.Argument(
            metavar="NETWORK",
            help="Folder of a run, of a saved network, or of an export, which needs no POLICY.",
        ),
    ],
    policy: Annotated[
        Path | None, typer.Argument(metavar="POLICY", help="Folder of a policy.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address or name; 127.0.0.1 for this machine only, 0.0.0.0 or :: for all."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="1 to 65535.")] = 8000,
    budget: Budget = None,
    data: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_data,
            help="For images: the data set of the training, whose normalisation and class names "
            "are used. Default: the run's.",
        ),
    ] = None,
    domain: Domain = None,
    class_names: Annotated[
        Path | None, typer.Option(help="Text file with one class name per line.")
    ] = None,
    max_batch: Annotated[
        int, typer.Option(help="Largest number of requests answered together.")
    ] = 32,
    batch_wait: Annotated[
        float, typer.Option(help="Seconds that a request waits for others.")
    ] = 0.002,
    workers: Annotated[
        int, typer.Option(help="Number of processes that each hold the network.")
    ] = 1,
    threads: Annotated[
        int | None, typer.Option(help="Threads of torch or ONNX Runtime in each worker.")
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    max_bytes: Annotated[int, typer.Option(help="Size limit of a request's body.")] = 4 * 2**20,
    max_pixels: Annotated[
        int, typer.Option(help="Size limit of an image as it is sent.")
    ] = 16_000_000,
    body_timeout: Annotated[
        float, typer.Option(help="Seconds in which a body must arrive.")
    ] = 10.0,
    max_requests: Annotated[
        int, typer.Option(help="Largest number of open requests; further ones get a 503.")
    ] = 1000,
    tokenizer: TokenizerName = None,
    hold_budget: Annotated[
        bool,
        typer.Option(
            "--hold-budget",
            help="Keep the mean cost at the budget when inputs become harder or easier.",
        ),
    ] = False,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that open requests get once the server is to stop.")
    ] = 30.0,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Write every prediction to stderr, as JSON.")
    ] = False,
    remote_admin: Annotated[
        bool,
        typer.Option("--remote-admin", help="Let other machines change budget and policy, too."),
    ] = False,
) -> None:
    r"""Answer requests over HTTP; every sample stops at its own exit.

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
    """
    from offramp.serving import Model, ServeConfig, serve

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    config = ServeConfig(
        host=host,
        port=port,
        max_batch=max_batch,
        batch_wait=batch_wait,
        workers=workers,
        threads=threads,
        device=device,
        precision=precision,
        max_bytes=max_bytes,
        max_pixels=max_pixels,
        body_timeout=body_timeout,
        max_requests=max_requests,
        drain_timeout=drain_timeout,
        access_log=access_log,
        remote_admin=remote_admin,
    )
    model = Model.of_run(
        network,
        policy,
        budget,
        data=data,
        domain=domain,
        class_names=class_names,
        tokenizer=tokenizer,
    )
    where = model.check_place(device, precision)

    def ready(address: str) -> None:
        text = f"serving on {where}, at {address}/predict; stop with Ctrl-C"
        err.print(text, soft_wrap=True)

    try:
        serve(replace(model, hold_budget=hold_budget), config, ready=ready)
    except KeyboardInterrupt:  # before anything was answered
        pass
    except ProcessError as error:  # not the user's mistake: a supervisor should start it again
        err.print(f"offramp: {error}", style="red", soft_wrap=True)
        raise typer.Exit(1) from None
    err.print("stopped", highlight=False)
