// Two methods at the budget of the slider: their figures, thresholds, and who leaves where.

function showChosen(section) {
  for (const [side, index] of Object.entries(section.chosen)) {
    const root = section.find(`[data-side="${side}"]`);
    const points = section.methods[index].points;
    root.style.setProperty("--own", `var(--m${section.methods[index].colour})`);
    root.querySelector('[data-value="accuracy"]').textContent = percent(points.accuracies[section.place], 2);
    root.querySelector('[data-value="cost"]').textContent = percent(points.costs[section.place], 1);
    root.querySelector('[data-value="val-cost"]').textContent = percent(points.val_costs[section.place], 1);
    const ways = root.querySelector('[data-value="ways"]');
    if (ways) ways.textContent = waysToStop(points, section.place);
  }
  section.find('[data-value="finding"]').textContent = finding(section);
  showPoints(section);
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

// Of answers without logits: who stopped because they were sure, and who gave up.
function waysToStop(points, place) {
  const [sure, hopeless] = [points.sure[place], points.gave_up[place]].map(sum);
  return `stopped early: ${percent(sure)} sure, ${percent(hopeless)} as hopeless`;
}

const signed = (value, digits) => (Number(value.toFixed(digits)) + 0 < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);

// What was measured, and no verdict: a difference without an interval is not a win.
function finding(section) {
  const [left, right] = [section.chosen.left, section.chosen.right].map((index) => section.methods[index]);
  if (left === right) return "Choose two different methods to compare them.";
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
  const methods = [section.chosen.left, section.chosen.right].map((index) => section.methods[index]);
  const top = element("tr", {}, element("th", { rowspan: "2", scope: "col" }, "exit"));
  const below = element("tr");
  for (const method of methods) {
    top.append(element("th", { class: "group", colspan: "2", scope: "colgroup" }, swatchOf(method), method.label));
    below.append(element("th", { class: "group", scope: "col" }, "leave"), element("th", { scope: "col" }, "threshold"));
  }
  const body = element("tbody");
  for (let exit = 0; exit < section.numExits; exit += 1) {
    const row = element("tr", {}, element("th", { scope: "row" }, String(exit)));
    for (const { points } of methods) {
      const hopeless = section.tellsWays ? points.gave_up[section.place][exit] : 0;
      const note = hopeless > 0 ? [" ", element("small", {}, `${percent(hopeless)} hopeless`)] : [];
      row.append(element("td", { class: "group", "data-value": "share" }, percent(points.shares[section.place][exit]), ...note));
      row.append(element("td", { "data-value": "threshold" }, ...threshold(points, section.place, exit)));
    }
    body.append(row);
  }
  table.replaceChildren(element("thead", {}, top, below), body);
}

function drawShares(section) {
  const traces = [section.chosen.left, section.chosen.right].flatMap((index, side) => {
    const method = section.methods[index];
    const { shares, gave_up: hopeless } = method.points;
    const bars = (part, values, hovertemplate, pattern) => ({
      type: "bar", x: values.map((_, exit) => exit), y: values.map((share) => 100 * share),
      name: literal(method.label + part), offsetgroup: String(side), hovertemplate,
      marker: { color: methodColour(method, side ? 1 : 0.75), ...pattern },
    });
    const all = shares[section.place];
    if (!section.tellsWays) return [bars("", all, "%{y:.1f} %")];
    const lost = hopeless[section.place];
    return [
      bars("", all.map((share, exit) => share - lost[exit]), "%{y:.1f} %"),
      bars(", hopeless", lost, "%{y:.1f} %", { pattern: { shape: "/", fillmode: "overlay", fgcolor: colour("paper"), solidity: 0.4 } }),
    ];
  });
  const x = axis("exit", { dtick: 1, showgrid: false });
  const y = percentAxis("samples that leave", { rangemode: "tozero" });
  draw(section.chart("shares"), traces, layout(x, y, { barmode: section.tellsWays ? "stack" : "group", bargap: 0.3, bargroupgap: 0.08 }));
}
