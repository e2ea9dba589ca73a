// The cost-accuracy curve, and the two methods at the budget of the slider.

function referenceTraces(section) {
  const { fixed, full, oracle_curve: oracle } = section.data.references;
  const traces = [];
  if (!section.hidden.has("\0oracle")) traces.push({
    x: oracle.map((point) => 100 * point[1]), y: oracle.map((point) => 100 * point[0]),
    name: "Oracle", mode: "lines", line: { color: colour("ink"), width: 1.5, dash: "dot" }, hovertemplate: "%{y:.2f} %",
  });
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
  for (const index of new Set(Object.values(section.sides))) {
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

function showSides(section) {
  for (const [side, index] of Object.entries(section.sides)) {
    const root = section.find(`[data-side="${side}"]`);
    const points = section.methods[index].points;
    root.style.setProperty("--own", `var(--m${section.methods[index].colour})`);
    root.querySelector('[data-value="accuracy"]').textContent = percent(points.accuracies[section.place], 2);
    root.querySelector('[data-value="cost"]').textContent = percent(points.costs[section.place], 1);
    root.querySelector('[data-value="val-cost"]').textContent = percent(points.val_costs[section.place], 1);
  }
  section.find('[data-value="finding"]').textContent = finding(section);
  showPoints(section);
}

const signed = (value, digits) => (Number(value.toFixed(digits)) + 0 < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);

// What was measured, and no verdict: a difference without an interval is not a win.
function finding(section) {
  const [left, right] = [section.sides.left, section.sides.right].map((index) => section.methods[index]);
  if (left === right) return "Choose two different methods to set them side by side.";
  const gap = (key) => 100 * (right.points[key][section.place] - left.points[key][section.place]);
  const [accuracy, cost] = [signed(gap("accuracies"), 2), signed(gap("costs"), 1)];
  return `${right.label} against ${left.label}: ${accuracy} points of accuracy, ${cost} points of cost.`;
}

// The score that has to be reached, and what it is as a probability.
function threshold(points, place, exit) {
  if (exit >= points.thresholds[place].length) return ["all"];
  const score = number(points.thresholds[place][exit]);
  if (score === Infinity) return ["closed"];
  if (score === -Infinity) return ["all"];
  const text = score.toFixed(2).replace("-", "−");
  return points.stated ? [text, " ", element("small", {}, decimal(points.stated[place][exit]))] : [text];
}

function showPoints(section) {
  const table = section.find('[data-table="points"]');
  const sides = [section.sides.left, section.sides.right].map((index) => section.methods[index]);
  const top = element("tr", {}, element("th", { rowspan: "2", scope: "col" }, "exit"));
  const below = element("tr");
  for (const method of sides) {
    top.append(element("th", { class: "group", colspan: "2", scope: "colgroup" }, swatchOf(method), method.label));
    below.append(element("th", { class: "group", scope: "col" }, "leave"), element("th", { scope: "col" }, "threshold"));
  }
  const body = element("tbody");
  for (let exit = 0; exit < section.numExits; exit += 1) {
    const row = element("tr", {}, element("th", { scope: "row" }, String(exit)));
    for (const { points } of sides) {
      row.append(element("td", { class: "group", "data-value": "share" }, percent(points.shares[section.place][exit])));
      row.append(element("td", { "data-value": "threshold" }, ...threshold(points, section.place, exit)));
    }
    body.append(row);
  }
  table.replaceChildren(element("thead", {}, top, below), body);
}

function drawShares(section) {
  const traces = [section.sides.left, section.sides.right].map((index, side) => {
    const method = section.methods[index];
    const shares = method.points.shares[section.place];
    return {
      type: "bar", x: shares.map((_, exit) => exit), y: shares.map((share) => 100 * share), name: literal(method.label),
      marker: { color: methodColour(method, side ? 1 : 0.75) }, hovertemplate: "%{y:.1f} %",
    };
  });
  const x = axis("exit", { dtick: 1, showgrid: false });
  draw(section.chart("shares"), traces, layout(x, percentAxis("samples that leave", { rangemode: "tozero" }), { bargap: 0.3, bargroupgap: 0.08 }));
}
