// What every method spends on the samples that no exit gets right.

function drawHopeless(section) {
  const traces = section.data.hopeless ? [{
    x: [0, 100], y: [0, 100], mode: "lines", name: "as for all samples", hoverinfo: "skip",
    line: { color: colour("rule-strong"), width: 1.5, dash: "dash" },
  }] : [];
  for (const method of section.data.hopeless ? section.shown : []) {
    const { costs, hopeless_costs: spent } = method.points;
    traces.push(line(method, costs.map((cost) => 100 * cost), spent.map((cost) => 100 * cost), { hovertemplate: "%{y:.1f} %" }));
  }
  const notes = section.data.hopeless ? [] : [nothing("There are no hopeless samples.")];
  draw(section.chart("hopeless"), traces, layout(
    percentAxis("mean cost of all samples", { hoverformat: ".1f", showgrid: false, range: [0, 104] }),
    percentAxis("mean cost of hopeless samples", { range: [0, 108] }), { annotations: notes },
  ));
}

function showHopeless(section) {
  const { hopeless, samples, methods } = section.data;
  const head = ["method", "all", "hopeless", "share of all compute"].map((text) => element("th", { scope: "col" }, text));
  const rows = methods.map((method) => {
    const all = method.points.costs[section.place];
    const lost = method.points.hopeless_costs[section.place];
    const cells = lost === null ? ["–", "–"] : [percent(lost), percent((hopeless * lost) / (samples * all))];
    return element("tr", {}, element("th", { scope: "row" }, swatchOf(method), method.label),
      element("td", {}, percent(all)), ...cells.map((text) => element("td", {}, text)));
  });
  section.find('[data-table="hopeless"]').replaceChildren(
    element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}
