"""The sub-commands `export` and `serve`: parse, and one public call."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from offramp.cli.console import err, out
from offramp.cli.predict_bench import (
    Budget,
    NetworkPath,
    PolicyPath,
    load_policy,
    note_normalization,
)
from offramp.cli.train_record import Domain, load_network
from offramp.data.load import Source
from offramp.onnx.export import export
from offramp.serving.images import images_as_trained, takes_files
from offramp.serving.model import Model, network_folder, read_names
from offramp.serving.requests import Intake
from offramp.serving.server import ServeConfig, serve


def export_command(
    network: NetworkPath,
    policy: PolicyPath,
    folder: Annotated[Path, typer.Option("--out", help="Where to write.")] = Path("export"),
    budget: Budget = None,
    single: Annotated[
        bool, typer.Option("--single", help="Also one graph of all stages, for single samples.")
    ] = False,
) -> None:
    """Write a network and its policy as ONNX graphs, one per stage.

    Each graph holds a stage with its head, answer, scorer and confidence, and takes any batch
    size. export.json names them and holds the thresholds of all budgets. In Python,
    offramp.OnnxRunner(FOLDER) runs them without torch's network; docs/serving.md describes the
    inputs and outputs for other languages. Needs pip install 'offramp[onnx]'.
    """
    loaded, chosen = load_network(network), load_policy(policy, budget)
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True) as bar:
        task = bar.add_task("starting", total=loaded.num_exits)

        def update(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, description=text)

        export(loaded, chosen, folder, progress=update, single=single)
    graphs = f"{loaded.num_exits} graphs" + (", one of all stages" if single else "")
    out.print(f"{graphs} and export.json written to {folder}/", highlight=False)


def serve_command(
    network: NetworkPath,
    policy: PolicyPath,
    host: Annotated[
        str, typer.Option(help="127.0.0.1: this machine only; 0.0.0.0 or ::: everybody.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="1024 to 65535.")] = 8000,
    budget: Budget = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="For images: the data set of the training, whose normalisation and class names "
            "are used. Default: the run's."
        ),
    ] = None,
    domain: Domain = None,
    class_names: Annotated[
        Path | None, typer.Option(help="Text file with the name of a class in each line.")
    ] = None,
    max_batch: Annotated[int, typer.Option(help="Requests answered together, at most.")] = 32,
    batch_wait: Annotated[
        float, typer.Option(help="Seconds that a request waits for others.")
    ] = 0.002,
    workers: Annotated[int, typer.Option(help="Processes that each hold the network.")] = 1,
    threads: Annotated[int | None, typer.Option(help="Of torch, in each worker.")] = None,
    precision: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    max_bytes: Annotated[int, typer.Option(help="Of a request's body.")] = 4 * 2**20,
    max_pixels: Annotated[int, typer.Option(help="Of an image as it is sent.")] = 16_000_000,
    body_timeout: Annotated[float, typer.Option(help="Seconds for a body to arrive.")] = 10.0,
    max_requests: Annotated[int, typer.Option(help="At once; more are turned away.")] = 1000,
) -> None:
    """Answer requests over HTTP, each at the exit where it may stop.

    POST /predict takes a PNG or JPEG, or JSON: {"image": BASE64}, {"inputs": NESTED LISTS} or, for
    text, {"input_ids": LIST}; an "id" comes back. The answer is JSON: class, name, confidence
    (the calibrated probability that it is right), likely_wrong, exit and cost. GET /health says
    whether the server is ready, GET /metrics is for Prometheus.

    Requests that come together are answered in one batch, in which every sample leaves at its own
    exit. Example: curl -H 'Content-Type: image/png' --data-binary @a.png 127.0.0.1:8000/predict

    There is no encryption here, and no key unless LIT_SERVER_API_KEY is set (clients then send it
    as X-API-Key): put a proxy in front before the world can reach it. Needs pip install
    'offramp[serve]'.
    """
    config = ServeConfig(
        host=host,
        port=port,
        max_batch=max_batch,
        batch_wait=batch_wait,
        workers=workers,
        threads=threads,
        precision=precision,
        body_timeout=body_timeout,
        max_requests=max_requests,
    )
    loaded = load_network(network)
    told = Source.find(network, data, domain)
    if takes_files(loaded.inputs):
        note_normalization(told)
    reader, names = images_as_trained(loaded.inputs, told)
    intake = Intake(loaded.inputs, reader, max_bytes, max_pixels)
    model = Model(network_folder(network), policy, budget, read_names(class_names) or names)
    err.print(f"serving at http://{host}:{port}/predict; stop with Ctrl-C", highlight=False)
    serve(model, intake, config)
    err.print("stopped", highlight=False)
