"""Methods beyond the paper's on networks that are trained well.

Every method with geometric and with smooth thresholds, methods from other papers, and what auto
chooses, on the ledgers of the experiment strong-networks.
"""

from offramp_paper.experiments.beyond import METHODS, gains
from offramp_paper.experiments.page import report
from offramp_paper.experiments.run import Run
from offramp_paper.experiments.strong_networks import NETWORKS as NETWORKS


def main(run: Run) -> None:
    """Compare, and take gains apart."""
    results = [run.compare(run.record(each), METHODS) for each in run.networks(NETWORKS)]
    analysis = run.analyse(results, gains)
    report(run, "Beyond the paper, strong networks", __doc__, results, analysis=analysis)
