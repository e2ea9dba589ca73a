"""A whole experiment in one script to copy from: data, network, training, ledgers, methods, page.

    pip install 'offramp[train,report]'
    python examples/whole_experiment.py photos --network resnet18 --epochs 30

`photos` is a folder with one folder of images per class, or with Parquet files, or the name of a
data set. Run again, the script does nothing; killed, it goes on where it was; and a changed option
repeats what depends on it.
"""

import argparse
from pathlib import Path

import offramp
from offramp.made import fingerprint, once
from offramp.report import comparison_tables, read_comparison, write_comparison

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("data", nargs="?", default="cluttered-digits")
parser.add_argument("--network", default="convnet")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--methods", default="baseline,temperature,eefp-logistic")
chosen = parser.parse_args()

# Data in four splits, an untrained network, and how it is trained: they name the run's folder.
splits = offramp.data.load(chosen.data)
network = offramp.networks.build_for_data(chosen.network, splits.train)
config = offramp.TrainConfig(epochs=chosen.epochs)
settings = [chosen.network, config, splits.fingerprint]
run = Path("runs") / f"experiment-{fingerprint(settings)[:8]}"
offramp.train(network, splits.train, config=config, folder=run)  # resumes by itself

# Ledgers: what every exit says about samples that the network was not trained on.
ledgers = {}
for split in ("held_out", "val", "test"):
    place = once(
        run / "ledgers" / split,
        settings,
        lambda place, split=split: offramp.record(network, splits[split]).save(place),
    )
    ledgers[split] = offramp.Ledger.load(place)

# Methods are fitted on held_out, tuned on val and measured on test.
methods = chosen.methods.split(",")
place = once(
    run / "comparison",
    [settings, methods],
    lambda place: write_comparison(offramp.compare(**ledgers, methods=methods), place),
)
comparison, _ = read_comparison(place)
print("\n\n".join(table.markdown() for table in comparison_tables(comparison)))
print(f"page: {place / 'report.html'}")
