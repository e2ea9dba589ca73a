"""The sub-commands `export` and `serve`: parse, and one public call."""

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
    complete_data,
)
from offramp.cli.predict_bench import load_policy
from offramp.cli.train_record import load_network
from offramp.progress import RunProgress


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

    loaded, chosen = load_network(network), load_policy(policy, budget)
    with RunProgress() as progress:
        points: Literal["selected", "all"] = "all" if all_points else "selected"
        export(loaded, chosen, folder, progress=progress.step, points=points, full=full)
    graphs = len(list(folder.glob("*.onnx")))
    out.print(f"{graphs} graphs and export.json written to {folder}/", highlight=False)


def serve_command(
    network: NetworkPath,
    policy: PolicyPath,
    host: Annotated[
        str, typer.Option(help="127.0.0.1 for this machine only; 0.0.0.0 or :: for everybody.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="1024 to 65535.")] = 8000,
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
    threads: Annotated[int | None, typer.Option(help="Threads of torch in each worker.")] = None,
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
) -> None:
    r"""Answer requests over HTTP; every sample stops at its own exit.

    POST /predict takes a PNG or JPEG, or JSON: {"image": BASE64}, {"inputs": NESTED LISTS} or, for
    text, {"input_ids": LIST}; an "id" is returned with the answer. The answer is JSON: class,
    name, confidence (the calibrated probability that it is right), likely_wrong, exit and cost.
    GET /health says whether the server is ready, and GET /metrics is for Prometheus.

    Requests that arrive together are answered in one batch, which every sample leaves at its own
    exit. Example: curl -H 'Content-Type: image/png' --data-binary @a.png 127.0.0.1:8000/predict

    There is no encryption, and no key unless LIT_SERVER_API_KEY is set (clients then send it as
    X-API-Key): put a proxy in front of a public server. Needs pip install 'offramp\[serve]'.
    """
    from offramp.machine import describe_device, find_device, to_precision
    from offramp.serving import Model, ServeConfig, serve

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
    )
    model = Model.of_run(
        network, policy, budget, data=data, domain=domain, class_names=class_names
    )
    place = find_device(device)
    err.print(
        f"serving on {describe_device(place)}, {to_precision(precision, place)}, at "
        f"http://{host}:{port}/predict; stop with Ctrl-C",
        soft_wrap=True,
    )
    serve(model, config)
    err.print("stopped", highlight=False)
