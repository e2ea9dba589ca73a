// What all charts share: numbers as text, colours of the theme, layout. Each chart has a function
// drawNAME in tradeoff.js, budget.js, exits.js or hopeless.js, and a place data-chart="NAME" in
// comparison.html; comparison.js calls it when something changes.

const CONFIG = { displayModeBar: false, showTips: false };
const NARROW_SPACE = "\u202f";

const number = (value) => (value === null ? NaN : Number(value === "inf" ? Infinity : value === "-inf" ? -Infinity : value));
const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}${NARROW_SPACE}%`;
const decimal = (value, digits = 3) => (Number.isFinite(number(value)) && value !== null ? Number(value).toFixed(digits) : "–");

// Plotly interprets tags and entities; labels come from users and must stay text.
const literal = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

// A CSS variable as resolved for the current theme.
const probe = document.createElement("span");
function colour(name, alpha = 1) {
  probe.style.color = `var(--${name})`;
  if (!probe.isConnected) document.body.append(probe);
  const parts = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
  return `rgba(${parts.slice(0, 3).join(",")},${alpha})`;
}
const methodColour = (method, alpha = 1) => colour(`m${method.colour}`, alpha);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function swatchOf(method) {
  const made = element("span", { class: `swatch ${method.dash} ${method.marker}` });
  made.style.color = `var(--m${method.colour})`;
  return made;
}

// Lines differ in dash and marker too: on grey paper, and for readers who see colours differently.
const markerOf = (method, extra) => ({ symbol: method.marker, size: 7, color: methodColour(method), ...extra });

function axis(title, extra = {}) {
  return {
    title: { text: title, font: { size: 12, color: colour("muted") }, standoff: 8 },
    gridcolor: colour("rule"),
    linecolor: colour("rule-strong"),
    tickfont: { size: 12, color: colour("muted") },
    zeroline: false,
    fixedrange: true,
    automargin: true,
    ...extra,
  };
}

const percentAxis = (title, extra = {}) => axis(title, { ticksuffix: NARROW_SPACE + "%", ...extra });

function layout(x, y, extra = {}) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("ink") },
    margin: { l: 8, r: 12, t: extra.title ? 36 : 12, b: 8 },
    showlegend: false,
    hovermode: "x unified",
    hoverlabel: {
      bgcolor: colour("paper"),
      bordercolor: colour("rule-strong"),
      font: { size: 12, color: colour("ink") },
      namelength: -1,
    },
    xaxis: x,
    yaxis: y,
    ...extra,
  };
}

const heading = (text) => ({ text, font: { size: 13, color: colour("ink") }, x: 0, xref: "paper", xanchor: "left", y: 0.98, yanchor: "top" });

function line(method, x, y, extra = {}) {
  return {
    x, y,
    name: literal(method.label),
    mode: "lines+markers",
    line: { color: methodColour(method), width: 2, dash: method.dash },
    marker: markerOf(method, { maxdisplayed: 12 }),
    ...extra,
  };
}

// Mean and one standard deviation over seeds; the band is drawn as one closed outline.
function bandTraces(method, band, scale, unit, extra = {}) {
  const mean = band.mean.map((value) => (value === null ? null : scale * value));
  const spread = band.spread && band.spread.map((value) => scale * value);
  const digits = scale === 100 ? 2 : 3;
  const x = band.x.map((value) => (scale === 100 ? 100 * value : value));
  const traces = [line(method, x, mean, {
    customdata: spread ? spread.map((value) => ` ± ${value.toFixed(digits)}`) : mean.map(() => ""),
    hovertemplate: `%{y:.${digits}f}${unit}%{customdata}`,
    ...extra,
  })];
  if (spread) {
    const upper = mean.map((value, i) => value + spread[i]);
    const lower = mean.map((value, i) => value - spread[i]);
    traces.unshift({
      x: [...x, ...x.toReversed()], y: [...upper, ...lower.reverse()],
      fill: "toself", fillcolor: methodColour(method, 0.18), line: { width: 0 }, mode: "lines", hoverinfo: "skip",
    });
  }
  return traces;
}

// With its size given, a chart fits its place at once, also in print.
function draw(target, traces, shape) {
  const size = { width: target.clientWidth, height: target.clientHeight };
  Plotly.react(target, traces, { ...shape, ...size }, CONFIG);
}
