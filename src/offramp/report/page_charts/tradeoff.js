// The chart of cost and accuracy, with what is reachable, the oracle, the mix of two fixed exits, the full network and each exit alone.

function referenceTraces(section) {
  const { fixed, full, mix_curve: mix, oracle_curve: oracle, reachable_curve: reachable } = section.data.references;
  const traces = [];
  for (const [key, name, curve, dash] of [["\0reachable", "Reachable", reachable, "dash"], ["\0oracle", "Oracle", oracle, "dot"], ["\0mix", "Mix of two fixed exits", mix, "solid"]]) {
    if (!section.hidden.has(key)) traces.push({
      x: curve.map((point) => 100 * point[1]), y: curve.map((point) => 100 * point[0]),
      name, mode: "lines", line: { color: colour("ink"), width: 1.5, dash }, hovertemplate: "%{y:.2f} %",
    });
  }
  if (!section.hidden.has("\0fixed")) traces.push({
    x: fixed.map((row) => 100 * row.cost), y: fixed.map((row) => 100 * row.accuracy),
    name: "Exit alone", mode: "markers",
    marker: { symbol: "x-thin", size: 9, line: { width: 2, color: colour("ink") } },
    customdata: fixed.map((row) => [row.exit_index, 100 * row.cost]),
    hovertemplate: "%{y:.2f} % (exit %{customdata[0]} at %{customdata[1]:.1f} %)",
  });
  if (!section.hidden.has("\0full")) traces.push({
    x: [100 * full.cost], y: [100 * full.accuracy], name: "Full network", mode: "markers",
    marker: { symbol: "diamond-open", size: 13, line: { width: 2 }, color: colour("ink") },
    hovertemplate: "%{y:.2f} %",
  });
  return traces;
}

function drawTradeoff(section) {
  const place = section.place;
  const traces = section.shown.flatMap((method) => bandTraces(method, method.curve, 100, " %"));
  traces.push(...referenceTraces(section));
  for (const index of new Set(Object.values(section.chosen))) {
    const method = section.methods[index];
    if (section.hidden.has(method.name)) continue;
    traces.push({
      x: [100 * method.points.costs[place]], y: [100 * method.points.accuracies[place]], mode: "markers",
      marker: { size: 12, color: methodColour(method), line: { width: 2, color: colour("paper") } }, hoverinfo: "skip",
    });
  }
  const marker = {
    type: "line", x0: section.budget, x1: section.budget, y0: 0, y1: 1, yref: "paper",
    line: { color: colour("accent"), width: 1.5 },
  };
  const x = percentAxis("mean cost, share of the network without exits", {
    hoverformat: ".1f", showgrid: false, dtick: section.root.clientWidth < 560 ? 25 : 10, tick0: 0,
  });
  draw(section.chart("tradeoff"), traces, layout(x, percentAxis("accuracy on test"), { shapes: [marker] }));
}
