// Exit by exit: ECE, EEFP and AUGRC of all methods, and one exit of one method in detail.

const TITLES = { ece: "ECE", eefp: "EEFP", augrc: "AUGRC" };

function drawExits(section, figure) {
  const known = section.shown.filter((method) => method.bands[figure].mean.some((value) => value !== null));
  const traces = known.flatMap((method) => bandTraces(method, method.bands[figure], 1, "", { marker: markerOf(method) }));
  const x = axis("exit", { dtick: section.numExits > 12 ? 2 : 1, showgrid: false });
  draw(section.chart(figure), traces, layout(x, axis(""), { title: heading(TITLES[figure]) }));
}

function showExitFacts(section) {
  const { exits } = section.methods[section.method];
  const names = { accuracy: "accuracy", ece: "ECE", eefp: "EEFP", augrc: "AUGRC", nll: "NLL" };
  const made = Object.entries(names).map(([key, name]) => {
    const value = exits[key][section.exit];
    const text = key === "accuracy" && value !== null ? percent(value, 2) : decimal(value);
    return element("div", {}, element("dt", {}, name), element("dd", { "data-value": `exit-${key}` }, text));
  });
  section.find('[data-part="exit-facts"]').replaceChildren(...made);
}

const nothing = (text) => ({
  text, showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5, font: { size: 13, color: colour("muted") },
});

function drawReliability(section) {
  const method = section.methods[section.method];
  const { stated, right, counts } = method.reliability;
  const bins = counts[section.exit].map((_, bin) => bin).filter((bin) => counts[section.exit][bin] > 0);
  const traces = [
    { x: [0, 100], y: [0, 100], mode: "lines", line: { color: colour("rule-strong"), width: 1.5, dash: "dash" }, hoverinfo: "skip" },
    line(method, bins.map((bin) => 100 * stated[section.exit][bin]), bins.map((bin) => 100 * right[section.exit][bin]), {
      marker: markerOf(method, { size: 8 }),
      customdata: bins.map((bin) => counts[section.exit][bin]),
      hovertemplate: "stated %{x:.1f} %, correct %{y:.1f} %<br>%{customdata} samples<extra></extra>",
    }),
  ];
  const ends = { range: [-2, 102], dtick: 25, tick0: 0 };
  const notes = bins.length ? [] : [nothing("No probability is stated here.")];
  draw(section.chart("reliability"), traces, layout(
    percentAxis("stated probability", ends), percentAxis("correct answers", ends),
    { hovermode: "closest", title: heading("Reliability"), annotations: notes },
  ));
}

function drawHistogram(section) {
  const method = section.methods[section.method];
  const { edges, stop, go } = method.histograms;
  const isScored = section.exit < stop.length && [...stop[section.exit], ...go[section.exit]].some((count) => count > 0);
  const kinds = [["stop", stop, "should stop"], ["go", go, "should continue"]];
  const traces = !isScored ? [] : kinds.map(([name, counts, label]) => {
    const limits = edges[section.exit];
    const width = limits[1] - limits[0];
    return {
      type: "bar", x: limits.slice(0, -1).map((limit) => limit + width / 2), y: counts[section.exit], width,
      name: label, marker: { color: colour(name, 0.65), line: { width: 0 } },
      hovertemplate: "%{y} samples",
    };
  });
  const shapes = !isScored ? [] : thresholdLine(method.points.thresholds[section.place][section.exit], edges[section.exit]);
  const left = section.exit < stop.length ? "This method leaves the exit out." : "No scorer runs at the last exit: every sample leaves.";
  const notes = isScored ? [] : [nothing(left)];
  draw(section.chart("histogram"), traces, layout(
    axis("stop score", { hoverformat: ".2f", showgrid: false, visible: isScored }), axis("samples", { rangemode: "tozero", visible: isScored }),
    { barmode: "overlay", bargap: 0, title: heading("Scores"), shapes, annotations: notes,
      showlegend: isScored, legend: { x: 1, xanchor: "right", y: 1, yanchor: "top", font: { size: 12 }, bgcolor: "rgba(0,0,0,0)" } },
  ));
}

function thresholdLine(value, limits) {
  const at = number(value);
  if (!Number.isFinite(at)) return [];
  const x = Math.min(Math.max(at, limits[0]), limits.at(-1));
  return [{ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: colour("accent"), width: 1.5 } }];
}
